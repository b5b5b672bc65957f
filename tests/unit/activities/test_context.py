"""What the model sees: order, pinning, trimming, and the key that stands for all of it."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.cache import cache_key
from activities.transcript import Unit, conversation_units, newest_question
from activities.trimming import trim
from inference.templates import ChatMessage, encode_chat
from store.conversations import Earlier, SaidTo
from store.tasks import ChosenCall, StepRecord, Transcript
from workflows.contracts import LookUpInput, Plan, Sampling, Tenant, ToolUse, Turn

ANSWER = Turn(purpose="answer")
CHOICE = Turn(purpose="tool_call", tools=("calculator",))


def messages(*texts, pinned=()):
    return [
        {"role": "user" if n % 2 == 0 else "assistant", "content": text, "pinned": n in pinned}
        for n, text in enumerate(texts)
    ]


def transcript(*texts, system=None, steps=(), pinned=()):
    return Transcript(
        input={"input": None, "messages": messages(*texts, pinned=pinned), "system": system},
        steps=list(steps),
    )


def tool_step(number, result="12*7 = 84"):
    return StepRecord(step=number, text="{}", calls=[chosen("12*7", result)])


def chosen(expression, result, place=None):
    return ChosenCall("calculator", {"expression": expression}, place, result)


def contents(units):
    return [message.content for unit in units for _, _, message in unit.messages]


def passage(text):
    return Unit(
        messages=(("passage", "chunk 1", ChatMessage(role="user", content=text)),), rank=1.5
    )


def test_the_question_comes_last_and_what_answers_it_right_before():
    units = conversation_units(
        transcript("old", "reply", "question", system="be kind", steps=[tool_step(1)]),
        ANSWER,
        [passage("from the documents")],
    )
    assert contents(units) == [
        "be kind",
        "old",
        "reply",
        "from the documents",
        "(12*7) 12*7 = 84",
        "question\n\nUse the results above to answer.",
    ]


def test_a_choice_is_asked_with_the_question():
    last = contents(conversation_units(transcript("question"), CHOICE, []))[-1]
    assert last.startswith("question\n\nChoose the next tool")
    assert '"answer"' in last


def test_short_form_is_one_question():
    short = Transcript(input={"input": "hello", "messages": [], "system": None}, steps=[])
    assert contents(conversation_units(short, ANSWER, [])) == ["hello"]
    assert newest_question(short) == "hello"


def test_oldest_messages_go_first_pinned_and_question_stay(tokenizer):
    texts = [f"message {n} " + "x" * 40 for n in range(9)]
    units = conversation_units(
        transcript(*texts, system="system", pinned=(1,)), ANSWER, [passage("p" * 30)]
    )
    trimmed = trim(units, tokenizer, limit=330)
    kept = {part.source for part in trimmed.parts if part.kept}
    assert len(trimmed.prompt) <= 330
    assert {"request", "message 2", "message 9", "chunk 1"} <= kept
    assert "message 1" not in kept
    dropped = [p.source for p in trimmed.parts if not p.kept]
    assert dropped == sorted(dropped)
    assert trimmed.dropped == len(dropped)


def test_a_tool_result_and_its_call_are_one(tokenizer):
    units = conversation_units(transcript("q", steps=[tool_step(1), tool_step(2)]), ANSWER, [])
    results = [unit for unit in units if unit.messages[0][0] == "tool_result"]
    assert all(len(unit.messages) == 1 for unit in results)
    assert all("(12*7)" in unit.messages[0][2].content for unit in results)


def test_results_of_one_step_are_told_in_the_order_of_its_choice_and_of_calls_not_made_too():
    steps = [
        tool_step(1, "84"),
        StepRecord(
            step=2,
            text="[]",
            calls=[
                chosen("12*7", None, 1),  # asked before
                chosen("1+1", "2", 2),
                chosen("1+1", None, 3),  # the same again
                chosen("2+2", "4", 4),
                chosen("3+3", None, 5),  # one too many
            ],
        ),
        tool_step(3, "85"),
    ]
    units = conversation_units(transcript("q", steps=steps), ANSWER, [])[:-1]
    assert contents(units) == [
        "(12*7) 84",
        "(1+1) 2",
        "also (2+2) 4",
        "also (3+3) not called: this tool may be called no more often",
        "(12*7) 85",
    ]
    sources = [source for unit in units for _, source, _ in unit.messages]
    assert sources == ["step 1", "step 2, call 2", "step 2, call 4", "step 2, call 5", "step 3"]
    assert [unit.rank for unit in units] == sorted(unit.rank for unit in units)


def test_no_more_is_dropped_than_must_be(tokenizer):
    """Short results, of which most of the tokens are what the template puts around them."""
    steps = [tool_step(number, "1+1 = 2") for number in range(1, 101)]
    units = conversation_units(transcript("question", steps=steps), ANSWER, [])
    trimmed = trim(units, tokenizer, limit=1000)
    one_more = 2 * (len(encode_chat(tokenizer, [units[0].messages[0][2]])))
    assert 1000 - one_more < len(trimmed.prompt) <= 1000
    kept = [part.source for part in trimmed.parts if part.kept]
    assert kept[-2:] == ["step 100", "message 1"]
    assert len(kept) > 10


def test_what_must_stay_and_does_not_fit_is_none(tokenizer):
    assert trim(conversation_units(transcript("x" * 500), ANSWER, []), tokenizer, limit=100) is None


@settings(max_examples=60)
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60),
        min_size=1,
        max_size=9,
    ).filter(lambda t: len(t) % 2 == 1),
    limit=st.integers(20, 500),
)
def test_never_over_the_limit_and_everything_is_accounted_for(tokenizer, texts, limit):
    units = conversation_units(transcript(*texts), ANSWER, [])
    trimmed = trim(units, tokenizer, limit=limit)
    if trimmed is None:
        pinned = [m for u in units if u.pinned for _, _, m in u.messages]
        assert len(encode_chat(tokenizer, pinned)) > limit
    else:
        assert len(trimmed.prompt) <= limit
        assert len(trimmed.parts) == len(units)
        assert trimmed.parts[-1].kept


def told(*messages):
    return [SaidTo(number, text, at_step) for number, (text, at_step) in enumerate(messages, 1)]


def answered(number, text):
    return StepRecord(step=number, text=text, calls=[], answered=True)


def test_what_was_said_to_a_task_stands_where_it_was_taken_in():
    conversation = Transcript(
        input={"input": "question", "messages": [], "system": "be kind"},
        steps=[tool_step(1), answered(2, "84"), tool_step(3, "1+1 = 2")],
        said=told(("and?", 3), ("or?", 3)),
        earlier=[Earlier(1, "user", "hello"), Earlier(1, "assistant", "hi")],
    )
    units = conversation_units(conversation, ANSWER, [passage("from the documents")])
    assert contents(units) == [
        "be kind",
        "hello",
        "hi",
        "question",
        "(12*7) 12*7 = 84",
        "84",
        "and?",
        "from the documents",
        "(12*7) 1+1 = 2",
        "or?\n\nUse the results above to answer.",
    ]
    assert newest_question(conversation) == "or?"
    roles = [message.role for unit in units for _, _, message in unit.messages]
    assert roles[5] == "assistant"


def test_what_is_over_goes_first_and_what_nobody_answered_last(tokenizer):
    said = Transcript(
        input={"input": "first " + "x" * 60, "messages": [], "system": None},
        steps=[tool_step(1), answered(2, "y" * 60), tool_step(3, "1+1 = 2")],
        said=told(("waiting " + "z" * 60, 3), ("newest", 3)),
    )
    units = conversation_units(said, ANSWER, [passage("p" * 60)])
    whole = trim(units, tokenizer, limit=10_000)
    order = []
    for limit in range(whole.tokens, 60, -1):
        trimmed = trim(units, tokenizer, limit=limit)
        if trimmed is None:
            break
        gone = [part.source for part in trimmed.parts if not part.kept]
        order += [source for source in gone if source not in order]
    assert order == ["message 1", "step 1", "step 2", "chunk 1", "step 3", "task message 1"]


TENANT = Tenant(organisation_id=uuid4(), team_id=uuid4(), key_id=uuid4())
BASE = {
    "tenant": TENANT,
    "task_id": UUID(int=1),
    "step": 1,
    "call_key": "k",
    "plan": Plan(tools=(ToolUse(name="search"),), collections=(UUID(int=5), UUID(int=6))),
    "turn": ANSWER,
    "transcript_digest": "d",
}


def key(**changes):
    return cache_key(LookUpInput(**{**BASE, **changes}))


@pytest.mark.parametrize(
    "change",
    [
        {"transcript_digest": "e"},
        {"turn": CHOICE},
        {"turn": Turn(purpose="tool_call", tools=("calculator",), may_answer=False)},
        {"turn": ANSWER.model_copy(update={"parallel": 2})},
        {"tenant": Tenant(organisation_id=uuid4(), team_id=uuid4(), key_id=uuid4())},
        {"plan": Plan()},
        {"plan": BASE["plan"].model_copy(update={"model": "other"})},
        {"plan": BASE["plan"].model_copy(update={"route": "other"})},
        {"plan": BASE["plan"].model_copy(update={"passages": 4})},
        {"plan": BASE["plan"].model_copy(update={"sampling": Sampling(max_tokens=5)})},
        {"plan": BASE["plan"].model_copy(update={"sampling": Sampling(seed=2**62)})},
        {"plan": BASE["plan"].model_copy(update={"sampling": Sampling(stop=("x",))})},
    ],
)
def test_whatever_can_change_the_answer_changes_the_key(change):
    assert key(**change) != key()


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": uuid4()},
        {"step": 7, "call_key": "other"},
        {"tenant": TENANT.model_copy(update={"team_id": uuid4(), "key_id": uuid4()})},
        {"plan": BASE["plan"].model_copy(update={"collections": (UUID(int=6), UUID(int=5))})},
    ],
)
def test_what_cannot_does_not(change):
    assert key(**change) == key()
