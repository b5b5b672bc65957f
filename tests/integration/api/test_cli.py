"""The command line against a running stack, as people and scripts use it."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from tests.integration.running import OVERLINE, RunningStack

SAY = "[[say text={}]]"
LONG = " ".join(f"w{number:03}" for number in range(120))


def _ask(text: str, **attributes: object) -> str:
    more = "".join(f" {name}={value}" for name, value in attributes.items())
    return f"[[say text={json.dumps(text)}{more}]]"


def _submit(stack: RunningStack, question: str, *options: str) -> Any:
    words = ("submit", question, "--model", "scripted", "--no-tools", *options)
    return stack.json(*words)


def test_submit_streams_the_answer_and_shows_the_steps(stack: RunningStack) -> None:
    shown = stack.overline(
        "submit", _ask("hello, world"), "--model", "scripted", "--no-tools", "--no-cache"
    )
    assert shown.returncode == 0, shown.stderr
    first, _, table = shown.stdout.partition("\n")
    assert first == "hello, world"
    assert "succeeded" in table
    assert "scripted" in table
    assert "/workflows/task-" in shown.stderr


def test_tokens_are_shown_while_they_come(stack: RunningStack) -> None:
    process = subprocess.Popen(
        [
            *(OVERLINE, "submit", _ask(LONG, pace_ms=5), "--model", "scripted", "--no-tools"),
            *("--no-cache", "--max-tokens", "1000"),
        ],
        env=stack.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    began = process.stdout.read(4)
    first_at = time.monotonic()
    rest = process.stdout.read()
    assert process.wait() == 0
    assert (began + rest).startswith(LONG)
    # 600 bytes at 5 ms each: the first was there long before the last.
    assert time.monotonic() - first_at > 1.0


def test_json_has_the_task_and_its_steps(stack: RunningStack) -> None:
    done = _submit(
        stack, _ask("four"), "--user", "ada", "--tag", "project=apollo", "--max-cost", "1"
    )
    assert (done["status"], done["answer"]) == ("succeeded", "four")
    assert (done["user"], done["tags"]) == ("ada", {"project": "apollo"})
    (step,) = done["step_list"]
    assert (step["model"], step["finish_reason"]) == ("scripted", "stop")
    listed = stack.json("tasks", "--limit", "5")["tasks"]
    assert done["id"] in [task["id"] for task in listed]


def test_an_idempotency_key_gives_the_same_task(stack: RunningStack) -> None:
    key = str(uuid7())
    ids = {_submit(stack, _ask("x"), "--idempotency-key", key, "--detach")["id"] for _ in range(2)}
    assert len(ids) == 1


def test_watch_shows_every_event_from_any_point(stack: RunningStack) -> None:
    task = _submit(stack, _ask("a b c"), "--no-cache")["id"]
    shown = stack.overline("watch", task, "--json")
    events = [json.loads(line) for line in shown.stdout.splitlines()]
    assert events[0]["type"] == "task.accepted"
    assert events[-1]["type"] == "task.succeeded"
    again = stack.overline("watch", task, "--json", "--after", events[1]["id"])
    assert [json.loads(line) for line in again.stdout.splitlines()] == events[2:]


def test_watch_goes_on_when_the_api_dies(stack: RunningStack) -> None:
    """The API process is killed in mid-stream; the reader comes back without gap or repeat."""
    task = _submit(stack, _ask(LONG, pace_ms=15), "--no-cache", "--detach", "--max-tokens", "1000")[
        "id"
    ]
    process = subprocess.Popen(
        [OVERLINE, "watch", task, "--json"], env=stack.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines: list[str] = []
    enough = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if len(lines) == 8:
                enough.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert enough.wait(60)
    killed = stack.kill("api")
    stack.wait_until_restarted("api", killed)
    assert process.wait(90) == 0
    reader.join()
    events = [json.loads(line) for line in lines]
    numbers = [int(event["id"].partition(":")[2]) for event in events]
    assert numbers == list(range(1, len(numbers) + 1))
    assert "".join(e["payload"]["text"] for e in events if e["type"] == "text") == LONG


def test_cancel_ends_a_task(stack: RunningStack) -> None:
    task = _submit(
        stack, _ask(LONG, pace_ms=100), "--no-cache", "--detach", "--max-tokens", "1000"
    )["id"]
    watching = subprocess.Popen(
        [OVERLINE, "watch", task], env=stack.env, stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    watching.stdout.read(1)
    answer = stack.json("cancel", task)
    assert answer["requested"] is True
    assert watching.wait(30) == 1
    assert "cancelled" in watching.stdout.read()
    assert stack.json("cancel", task)["requested"] is False


def test_ingest_waits_and_leaves_unchanged_files_alone(stack: RunningStack, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("# Tides\n\nThe tide turns at noon.\n")
    (folder / "b.txt").write_text("The harbour closes at ten.\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "empty.md").write_text("")
    name = f"notes-{uuid7().hex[-12:]}"
    first = stack.json("ingest", name, str(folder))
    assert (first["ingested"], first["unchanged"], first["failed"]) == (2, 0, [])
    assert first["chunks"] >= 2
    (folder / "b.txt").write_text("The harbour closes at nine.\n")
    second = stack.json("ingest", name, str(folder))
    assert (second["ingested"], second["unchanged"]) == (1, 1)


@pytest.mark.timeout(300)
def test_replay_says_replays_or_where_it_diverges(stack: RunningStack, tmp_path: Path) -> None:
    task = _submit(stack, _ask("to be replayed"), "--no-cache")["id"]
    saved = tmp_path / "history.json"
    result = stack.json("replay", task, "--save", str(saved))
    assert result == {
        "workflow_id": f"task-{task}",
        "events": result["events"],
        "replays": True,
        "divergence": None,
        "event": None,
    }
    assert "to be replayed" not in saved.read_text()
    assert stack.json("replay", str(saved))["replays"] is True
    # As if today's workflow asked for another activity where this one was recorded.
    text = saved.read_text()
    assert '"gateway.admit"' in text
    saved.write_text(text.replace('"gateway.admit"', '"gateway.admit_of_old"'))
    diverged = stack.overline("replay", str(saved), "--json")
    assert diverged.returncode == 1
    facts = json.loads(diverged.stdout)
    assert facts["replays"] is False
    assert "gateway.admit_of_old" in facts["divergence"]
    event = json.loads(text)["events"][facts["event"] - 1]
    assert event["activityTaskScheduledEventAttributes"]["activityType"]["name"] == "gateway.admit"
    spoken = stack.overline("replay", str(saved))
    assert spoken.stdout.startswith("diverges")
    unknown = stack.overline("replay", str(uuid7()), "--json")
    assert unknown.returncode == 1
    assert "no workflow" in json.loads(unknown.stdout)["error"]["detail"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit", " "), "/input"),
        (("submit", "x", "--route", "no-such"), "Known: "),
        (("submit", "x", "--collection", "no-such"), "There is no such collection"),
        (("submit", "x", "--max-cost", "0.000000001"), "the task's budget"),
        (("submit", "x", "--max-cost", "much"), "--max-cost"),
        (("submit", "x", "--tag", "nothing"), "NAME=VALUE"),
        (("watch", str(uuid7())), "There is no such task"),
        (("cancel", "not-an-id"), "UUID"),
        (("ingest", "notes", "/no/such/folder"), "no file or folder"),
        (("ingest", "no/name", __file__.replace("test_cli.py", "played.py")), ""),
    ],
)
def test_refusals_are_said_in_words(stack: RunningStack, words: tuple[str, ...], said: str) -> None:
    spoken = stack.overline(*words)
    assert spoken.returncode == 1
    assert said in " ".join(spoken.stderr.split())
    assert "Traceback" not in spoken.stderr


@pytest.mark.parametrize("words", [("watch", str(uuid7())), ("submit", "x", "--tag", "nothing")])
def test_refusals_are_said_in_json(stack: RunningStack, words: tuple[str, ...]) -> None:
    machine = stack.overline(*words, "--json")
    assert machine.returncode == 1
    assert json.loads(machine.stdout)["error"]["detail"]


def test_without_an_api_the_message_says_what_to_do(stack: RunningStack) -> None:
    env = stack.env | {"OVERLINE_API_URL": "http://127.0.0.1:9"}
    done = subprocess.run([OVERLINE, "tasks"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "overline up" in done.stderr


def test_the_api_stops_in_time_with_a_reader_on_it(stack: RunningStack) -> None:
    task = _submit(stack, _ask(LONG, pace_ms=10), "--no-cache", "--detach", "--max-tokens", "1000")[
        "id"
    ]
    reader = subprocess.Popen(
        [OVERLINE, "watch", task, "--json"], env=stack.env, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    reader.stdout.readline()
    pid = stack.pid("api")
    asked_at = time.monotonic()
    subprocess.run(["kill", f"-{signal.SIGTERM.value}", str(pid)], check=True)
    stack.wait_for(lambda state: state.parts["api"]["pid"] != pid, limit_s=20)
    assert time.monotonic() - asked_at < 6
    stack.wait_until_restarted("api", pid)
    reader.stdout.read()
    assert reader.wait(60) == 0
