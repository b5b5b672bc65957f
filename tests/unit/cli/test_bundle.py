"""Bundles: every recorded kind of task travels, in clear and redacted; foreign ones are refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from temporalio.api.history.v1 import History
from temporalio.client import WorkflowHistory

from api.cli.bundle import Bundle, BundleRefused, read_bundle, write_bundle
from api.cli.payloads import decrypt_in_place, payloads_in
from api.cli.redaction import Redaction
from api.cli.replaying import replay_history
from settings import Settings
from tests.replay.recorded import load, recorded_kinds, settings_of_recordings
from workflows.client import data_converter
from workflows.codec import EncryptionCodec

#: What the recorded tasks said, computed, searched and were told.
SAID = ("An answer.", "6*7", "It is 42", "part b", "Words of part", "unheard_of", "Traceback")


def _bundled(kind: str, path: Path, *, redacted: bool) -> Bundle:
    history = load(kind)
    run = History(events=history.events)
    codec = data_converter(settings_of_recordings()).payload_codec
    assert isinstance(codec, EncryptionCodec)
    decrypt_in_place(run, codec)
    if redacted:
        redaction = Redaction()
        for payload in payloads_in(run):
            redaction.payload(payload)
        redaction.message(run)
    text = WorkflowHistory(history.workflow_id, list(run.events)).to_json()
    write_bundle(
        path,
        task_id=history.workflow_id.removeprefix("task-"),
        workflow_id=history.workflow_id,
        namespace="default",
        versions={"overline": "1"},
        redacted=redacted,
        histories=[(history.run_id, text)],
        rows={"task": {}},
    )
    return read_bundle(path)


def _words(bundle: Bundle) -> str:
    """Everything in the payloads and beside them, in clear."""
    run = History(events=bundle.histories[0].events)
    payloads = b"\n".join(payload.data for payload in payloads_in(run)).decode()
    return payloads + bundle.histories[0].to_json()


# Whether this task's call had to wait for a person depended on its arguments, which are gone; so
# is the id by which a signal told of their word.
ASKS_BY_ARGUMENT = {("approved", True), ("parallel", True), ("screened_held", True)}


@pytest.mark.parametrize(
    ("kind", "redacted"),
    [
        pytest.param(kind, redacted, id=f"{kind}-{'redacted' if redacted else 'clear'}")
        for kind in recorded_kinds()
        for redacted in (False, True)
        if (kind, redacted) not in ASKS_BY_ARGUMENT
    ],
)
async def test_every_kind_of_task_replays_from_a_bundle_without_the_key(
    kind: str, redacted: bool, tmp_path: Path
) -> None:
    bundle = _bundled(kind, tmp_path / "b.zip", redacted=redacted)
    assert len(bundle.histories[0].events) == len(load(kind).events)
    result = await replay_history(
        Settings(_env_file=None), bundle.histories[0], namespace=bundle.namespace
    )
    assert result.replays, result.divergence


@pytest.mark.parametrize("kind", recorded_kinds())
def test_redacted_says_nothing_and_still_names_everything(kind: str, tmp_path: Path) -> None:
    words = _words(_bundled(kind, tmp_path / "b.zip", redacted=True))
    assert [said for said in SAID if said in words] == []
    kind_of_workflow, _, task_id = load(kind).workflow_id.partition("-")
    if kind_of_workflow == "task":
        assert f'"task_id":"{task_id}"' in words
        # What a call asked is on its row; its workflow knows its id and no more.
        assert ('"route":"' in words) == (kind != "call")


def test_in_clear_the_words_are_there(tmp_path: Path) -> None:
    """Else the test above would hold for any reason."""
    words = "".join(
        _words(_bundled(kind, tmp_path / "b.zip", redacted=False)) for kind in recorded_kinds()
    )
    assert [said for said in SAID if said not in words] == ["Traceback"]


def test_redaction_keeps_equality_and_nothing_a_caller_named() -> None:
    redaction = Redaction()
    told = redaction.value(
        {
            "status": "failed",
            "answer": "secret",
            "again": ["secret", "other"],
            "name": "my dear agent with spaces",
            "tags": {"name": "apollo"},
            "tool_call": {"name": "calculator", "arguments": {"name": "Ada", "status": "ill"}},
            "tokens": 7,
            "token_ids": [1, 2],
            "billed_usd": "0.000001",
            "idempotency_key": "order-4711",
            "user_id": "ada",
            "ticket_id": "of-ada",
            "call_id": "01a23008-601b-7443-8c62-92108ca933ef:1:calculator",
        }
    )
    assert (told["status"], told["tokens"], told["billed_usd"]) == ("failed", 7, "0.000001")
    assert told["tool_call"]["name"] == "calculator"
    assert told["call_id"].endswith(":1:calculator")
    assert told["answer"] == told["again"][0] != told["again"][1]
    assert told["token_ids"] == []
    marks = [
        told["answer"],
        told["name"],
        told["tags"]["name"],
        told["idempotency_key"],
        told["user_id"],
        told["ticket_id"],
        *told["tool_call"]["arguments"].values(),
    ]
    assert all(mark.startswith("redacted-") for mark in marks)
    assert Redaction().value({"answer": "secret"})["answer"] != told["answer"]


def _rewritten(source: Path, target: Path, change: dict[str, bytes | None]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = change.get(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name in change.keys() - set(old.namelist()):
            new.writestr(name, change[name] or b"")
    return target


def test_what_was_changed_is_refused(tmp_path: Path) -> None:
    good = tmp_path / "b.zip"
    manifest = _bundled("plain", good, redacted=False).manifest
    run = "history/0001.json"
    with zipfile.ZipFile(good) as archive:
        text = archive.read(run)
    longer = {**json.loads(manifest.model_dump_json()), "format_version": 9}
    for change, said in [
        ({run: text.replace(b"gateway.admit", b"gateway.other")}, "was changed"),
        ({run: None}, "does not hold what its manifest lists"),
        ({"more.json": b"{}"}, "does not hold what its manifest lists"),
        ({"manifest.json": b"{}"}, "not of this format"),
        ({"manifest.json": b"\x00\xff"}, "not of this format"),
        ({"manifest.json": json.dumps(longer).encode()}, "format overline-bundle 9"),
        ({"manifest.json": None}, "has no manifest.json"),
    ]:
        bad = _rewritten(good, tmp_path / "bad.zip", change)  # type: ignore[arg-type]
        with pytest.raises(BundleRefused, match=said):
            read_bundle(bad)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    good = tmp_path / "b.zip"
    _bundled("plain", good, redacted=False)
    cut = tmp_path / "cut.zip"
    cut.write_bytes(good.read_bytes()[:-200])
    text = tmp_path / "text.zip"
    text.write_text("not a zip")
    flipped = tmp_path / "flipped.zip"
    content = bytearray(good.read_bytes())
    content[len(content) // 2] ^= 0xFF
    flipped.write_bytes(bytes(content))
    for path in (cut, text, flipped, tmp_path / "absent.zip", tmp_path):
        with pytest.raises(BundleRefused):
            read_bundle(path)


def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path) -> None:
    good = tmp_path / "b.zip"
    _bundled("plain", good, redacted=False)
    with pytest.raises(BundleRefused, match="unpacked"):
        read_bundle(good, most_bytes=1000)
    with pytest.raises(BundleRefused, match="unpacked"):
        read_bundle(good, most_member_bytes=1000)
    # One that lies about its size: 20 MB of nothing, said to be 10 bytes.
    bomb = tmp_path / "bomb.zip"
    _rewritten(good, bomb, {"manifest.json": b"0" * 20_000_000})
    raw = bomb.read_bytes()
    bomb.write_bytes(raw.replace((20_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(BundleRefused):
        read_bundle(bomb)
    honest = _rewritten(good, tmp_path / "honest.zip", {"manifest.json": b"0" * 20_000_000})
    with pytest.raises(BundleRefused, match="larger than"):
        read_bundle(honest)
