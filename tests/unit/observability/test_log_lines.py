"""Log lines: JSON with ids, without secrets and without content."""

import contextvars
import io
import json
import logging
import sys
import threading
import warnings

import psycopg
import pydantic
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from observability.logs import LONGEST_TEXT, JsonFormatter, setup_logging
from observability.redaction import MARK, Redactor, secrets_of
from settings import Settings

KEY_ID = "0192f0c1a2b37c4d8e5f60718293a4b5"
API_KEY = f"ol_{KEY_ID}_Zk3vQ9xT1bN-7uYc_2LwPq8RsEo5HgJfAaMdViXtKyB"
RING_KEY = "q83vASNFZ4mrze8BI0Vniavc7wEjRWeJq83vASNFZ4k="
CODEC = "codec-capability-5f2e9a"
SETTINGS = Settings(
    log_level="INFO",
    api_key=API_KEY,
    database_url="postgresql://overline_app:pg-canary-1@127.0.0.1:5433/overline",
    payload_keys=f"k1:{RING_KEY}",
    codec_token=CODEC,
    temporal_api_key="temporal-cloud-canary",
)


@pytest.fixture
def lines():
    """Lines written while the test runs; the logging of pytest is put back after."""
    root = logging.getLogger()
    names = list(logging.root.manager.loggerDict)
    kept = (root.handlers[:], root.level, sys.excepthook, threading.excepthook)
    levels = {n: logging.getLogger(n).level for n in names}
    stream = io.StringIO()
    setup_logging(SETTINGS, "overline-test", stream)

    def read():
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    read.text = stream.getvalue
    yield read
    root.handlers[:], root.level, sys.excepthook, threading.excepthook = kept
    root.setLevel(kept[1])
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(False)


def test_a_line_has_the_fields_and_the_ids_of_the_span(lines):
    span = TracerProvider().get_tracer("t").start_span("s")
    with trace.use_span(span):
        logging.getLogger("activities.generate").info(
            "resumed at token %d", 96, extra={"task_id": "t-1", "step": 2, "attempt": 3}
        )
    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    context = span.get_span_context()
    assert line == {
        "level": "info",
        "logger": "activities.generate",
        "message": "resumed at token 96",
        "service": "overline-test",
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "task_id": "t-1",
        "step": 2,
        "attempt": 3,
    }


def test_extras_that_are_no_ids_are_dropped(lines):
    logging.getLogger("x").info("call", extra={"prompt": "my diary", "call_key": "t-1:2"})
    (line,) = lines()
    assert line["call_key"] == "t-1:2"
    assert "my diary" not in lines.text()


def test_ids_of_temporals_adapters_are_taken(lines):
    extra = {"temporal_activity": {"workflow_id": "task-1", "attempt": 2, "task_queue": "q"}}
    logging.getLogger("temporalio.activity").warning("late", extra=extra)
    (line,) = lines()
    assert line["workflow_id"] == "task-1"
    assert line["attempt"] == 2
    assert "task_queue" not in line


def test_level_is_obeyed(lines):
    logging.getLogger("x").debug("no")
    logging.getLogger("httpx2").info("no")
    logging.getLogger("x").info("yes")
    assert [line["message"] for line in lines()] == ["yes"]


def test_a_message_never_breaks_its_line_and_has_a_bound(lines):
    logging.getLogger("x").info("a\nb\r\u2028" + "c" * 50_000)
    assert lines.text().count("\n") == 1
    assert len(json.loads(lines.text())["message"]) < LONGEST_TEXT + 100


def test_wrong_arguments_cost_their_text_not_the_line():
    # Formatted directly: pytest's own handler raises on such a record.
    record = logging.makeLogRecord({"msg": "%d tokens", "args": ("many",)})
    line = json.loads(JsonFormatter("overline-test", Redactor()).format(record))
    assert line["message"] == "%d tokens [message arguments do not fit]"


def test_uvicorn_is_routed_with_its_request_line(lines):
    logging.getLogger("uvicorn.access").info(
        '%s - "%s %s HTTP/%s" %d', "127.0.0.1:5", "POST", f"/codec/{CODEC}/decode", "1.1", 200
    )
    (line,) = lines()
    assert line["message"] == f'127.0.0.1:5 - "POST /codec/{MARK}/decode HTTP/1.1" 200'


CANARIES = [
    (f"key {API_KEY} is unknown", API_KEY[-43:]),
    (f"Authorization: Bearer {API_KEY}", API_KEY[-43:]),
    ("authorization: bearer abcDEF123.456-789_xyz==", "abcDEF123"),
    ("headers [(b'authorization', b'Basic dXNlcjpwYXNz')]", "dXNlcjpwYXNz"),
    ("cannot connect to postgresql://app:s3cr%40t-x@db:5432/o?sslmode=require", "s3cr%40t"),
    ("cannot connect to postgres://app:with/slash@db/o", "with/slash"),
    ("host=db user=app password=hunter22 dbname=o", "hunter22"),
    ("host=db password='with space' dbname=o", "with space"),
    ("{'password': 'hunter22', 'user': 'a'}", "hunter22"),
    ('{"client_secret": "hunter22"}', "hunter22"),
    (f"OVERLINE_PAYLOAD_KEYS=k1:{RING_KEY}", RING_KEY),
    (f"key ring entry k2:{RING_KEY[::-1][1:]}=", RING_KEY[::-1][1:]),
    (f"GET /codec/{CODEC}/decode", CODEC),
    ("amqp://guest:guestword@mq/", "guestword"),
    ("via temporal-cloud-canary", "temporal-cloud-canary"),
    ("via pg-canary-1 alone", "pg-canary-1"),
]


@pytest.mark.parametrize(("text", "canary"), CANARIES)
def test_canaries_do_not_get_out(lines, text, canary):
    log = logging.getLogger("x")
    log.info(text)
    log.info("got %s", text)
    log.info("got %r", {"header": text}, extra={"cause": text})
    try:
        try:
            raise ConnectionError(text)
        except ConnectionError as error:
            raise RuntimeError("the store is down") from error
    except RuntimeError:
        log.exception("failed")
    assert len(lines()) == 4
    assert lines()[3]["error"]["type"] == "RuntimeError"
    assert "ConnectionError" in lines()[3]["error"]["stack"]
    assert canary not in lines.text()
    assert MARK in lines.text()


def test_the_public_half_of_a_key_stays():
    assert Redactor()(API_KEY) == f"ol_{KEY_ID}_{MARK}"


@pytest.mark.parametrize(
    "text",
    [
        "step 2 · smollm2-135m-instruct: prompt 412 tokens, no tools needed",
        "postgresql://overline_app@127.0.0.1:5433/overline",
        "the bearer of bad news",
        "0192f0c1-a2b3-7c4d-8e5f-60718293a4b5:2#0@1",
        "http://127.0.0.1:8233/namespaces/default/workflows/task-1",
        "password is missing",
        "2026-12-01T03:52:07.123Z GET /v1/tasks 200",
    ],
)
def test_ordinary_text_is_left_alone(text):
    assert Redactor(secrets_of(SETTINGS))(text) == text


def test_a_short_secret_blanks_no_words():
    assert Redactor(["demo"])("the demo task") == "the demo task"


def test_a_real_validation_error_keeps_the_callers_words_out(lines):
    class Body(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        prompt: int

    # Not spelled out where it is raised: a stack quotes our source, which is no content.
    sent = {"prompt": " ".join(["dear", "diary"]), "other": " ".join(["tell", "nobody"])}
    try:
        Body.model_validate(sent)
    except pydantic.ValidationError:
        logging.getLogger("x").exception("bad request")
    assert "dear diary" not in lines.text()
    assert "tell nobody" not in lines.text()
    assert "int_parsing" in lines.text()


def test_a_drivers_error_text_keeps_the_row_out(lines):
    text = (
        'new row for relation "tasks" violates check constraint "c"\n'
        "DETAIL:  Failing row contains (1, dear diary (private), 2).\n"
    )
    try:
        raise psycopg.errors.CheckViolation(text)
    except psycopg.Error:
        logging.getLogger("x").exception("insert failed")
    assert "dear diary" not in lines.text()
    assert "violates check constraint" in lines.text()


def test_an_activitys_failure_is_told_by_type_and_place_but_not_in_its_words(lines):
    words = " ".join(["dear", "diary"])
    try:
        try:
            raise LookupError(f"cannot read {words}")
        except LookupError as error:
            raise RuntimeError(f"refused: {words}") from error
    except RuntimeError:
        logging.getLogger("temporalio.activity").warning("failed", exc_info=True)
        logging.getLogger("overline").warning("failed", exc_info=True)
    theirs, ours = (line["error"]["stack"] for line in lines())
    assert words not in theirs
    assert "builtins.LookupError" in theirs
    assert __file__.rpartition("/")[2] in theirs
    assert theirs.rstrip().endswith("builtins.RuntimeError")
    assert words in ours


def test_uncaught_errors_and_warnings_become_lines(lines):
    def die():
        raise RuntimeError(f"with {API_KEY}")

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    try:
        die()
    except RuntimeError as error:
        sys.excepthook(RuntimeError, error, error.__traceback__)
    warnings.warn("old call", stacklevel=1)
    assert [line["level"] for line in lines()] == ["critical", "critical", "warning"]
    assert API_KEY[-43:] not in lines.text()


def test_closed_workflows_make_no_noise_but_other_detach_errors_are_told(lines):
    name = contextvars.ContextVar("name")
    token = contextvars.Context().run(lambda: name.set("x"))
    log = logging.getLogger("opentelemetry.context")
    for error in (token, None):
        try:
            name.reset(error)
        except (ValueError, TypeError):
            log.exception("Failed to detach context")
    (line,) = lines()
    assert line["error"]["type"] == "TypeError"


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="LOUD"):
        setup_logging(Settings(log_level="loud"), "x", io.StringIO())
