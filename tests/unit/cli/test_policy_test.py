"""`overline policy test`, without a server."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from api.cli.policy import policy

POLICY = """
hold_back: 16
rules:
  - {id: ours, kind: allow_list, words: [support@example.com]}
  - {id: people, kind: pii, action: redact}
  - {id: codename, kind: deny_list, words: [Bluebird], on: [output], action: block}
  - {id: ask, kind: moderation, model: guard, action: block}
cases:
  - {text: write to bob@example.com, expect: redact, rule: people,
     becomes: write to <EMAIL_ADDRESS_1>}
  - {text: the Bluebird project, place: output, expect: block, becomes: "the "}
  - {text: mail support@example.com, expect: allow}
"""


def run(*arguments: str, said: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(policy, ["test", *arguments], input=said)
    return result.exit_code, result.output


def test_cases_in_the_file_are_a_test_suite(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    status, said = run(str(file), "--json")
    assert status == 0
    assert json.loads(said)["passed"] == 3
    file.write_text(f"{POLICY}  - {{text: fine, expect: flag, name: nothing there}}\n")
    status, said = run(str(file))
    assert status == 1
    assert "nothing there (input): expected flag, and it is allow" in said


def test_a_text_is_judged_and_a_block_tells_by_the_exit_status(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    status, said = run(str(file), "--input", "-", "--json", said="Bluebird? bob@example.com")
    assert status == 0
    told = json.loads(said)
    assert (told["outcome"], told["text"]) == ("redact", "Bluebird? <EMAIL_ADDRESS_1>")
    assert told["not_asked"] == ["ask"]
    status, said = run(
        str(file), "--input", "-", "--place", "output", said="415-555-2671 for Bluebird"
    )
    assert status == 1
    assert "[PHONE_NUMBER] for" in said
    assert "Bluebird" not in said
    file.write_text(f"mode: dry_run\n{POLICY}")
    status, said = run(str(file), "--input", "-", "--place", "output", said="Bluebird")
    assert status == 0
    assert "would be block" in said


def test_what_is_wrong_with_a_policy_is_told_without_its_words(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: [{id: a, kind: pii, action: nuke}, {id: b, kind: deny_list, words: x}]")
    status, said = run(str(file))
    assert status == 1
    assert "rules.0.action" in said
    assert "rules.1.words" in said
    assert "nuke" not in said
    assert run(str(tmp_path / "none.yaml"))[0] == 1
    file.write_text("- nothing")
    assert run(str(file))[0] == 1
