"""`overline policy test`: what a policy says of texts, without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import TypeAdapter, ValidationError
from rich import box
from rich.table import Table

from api.cli.agents import read_document
from api.cli.render import REFUSED, console, fail, print_json, print_table
from safety.cases import Case, Judged, Tried, judge, try_cases
from safety.errors import DetectorFailed
from safety.policy import PLACES, Place, Policy

__all__ = ["read_policy", "try_policy"]

_CASES = TypeAdapter(list[Case])


def try_policy(
    file: Annotated[Path, typer.Argument(help="The policy, in YAML or JSON, cases in it or not.")],
    given: Annotated[
        Path | None,
        typer.Option("--input", help="Judge this file's text, - for standard input, and no cases."),
    ] = None,
    place: Annotated[
        str, typer.Option(help=f"Where the text comes from: {', '.join(PLACES)}.")
    ] = "input",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Try a policy on a text, or on the cases in its file; ends with 1 if blocked or if one fails.

    Nothing is sent anywhere: rules that ask a model are named and not asked.
    """
    policy, cases = _read(file, as_json)
    if place not in get_args(Place):
        fail(f"no such place: {place}; there are {', '.join(PLACES)}", as_json)
    try:
        if given is not None:
            judged = judge(policy, _text(given, as_json), place)  # type: ignore[arg-type]
            _tell(policy, judged, as_json)
            blocked = judged.outcome == "block" and policy.mode == "enforce"
            raise typer.Exit(REFUSED if blocked else 0)
        tried = try_cases(policy, cases)
    except DetectorFailed as error:
        fail(str(error), as_json)
    _tell_cases(policy, tried, as_json)
    if any(each.wrong for each in tried):
        raise typer.Exit(REFUSED)


def read_policy(file: Path, as_json: bool) -> dict[str, Any]:
    """Return what a policy's file says, its cases too, or end with what is wrong with it."""
    document = read_document(file, as_json)
    if not isinstance(document, dict):
        fail(f"{file}: a policy is a mapping with `rules`", as_json)
    rules = document.get("rules")
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, dict) and True in rule:  # YAML reads the word `on` as true
            rule["on"] = rule.pop(True)
    return document


def _read(file: Path, as_json: bool) -> tuple[Policy, list[Case]]:
    """Return the policy in a file and its cases, or end with what is wrong with it."""
    document = read_policy(file, as_json)
    cases = document.pop("cases", [])
    try:
        return Policy.of(document), _CASES.validate_python(cases)
    except ValidationError as error:
        # What is wrong and where, without the words of the policy: they may be what it hides.
        said = error.errors(include_url=False, include_input=False, include_context=False)
        lines = [f"{'.'.join(map(str, each['loc'])) or 'policy'}: {each['msg']}" for each in said]
        fail(f"{file}: " + "; ".join(lines), as_json)


def _text(file: Path, as_json: bool) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read ({type(error).__name__})", as_json)


def _document(judged: Judged) -> dict[str, Any]:
    return {
        "outcome": judged.outcome,
        "text": judged.text,
        "findings": [found.document() for found in judged.findings],
        "not_asked": list(judged.unasked),
    }


def _tell(policy: Policy, judged: Judged, as_json: bool) -> None:
    if as_json:
        print_json({"mode": policy.mode, **_document(judged)})
        return
    would = "would be " if policy.mode == "dry_run" else ""
    console.print(f"{would}{judged.outcome}")
    if judged.findings:
        table = Table("rule", "action", "label", "from", "to", box=box.SIMPLE_HEAD, pad_edge=False)
        for found in judged.findings:
            table.add_row(found.rule, found.action, found.label, str(found.start), str(found.end))
        print_table(table)
    for rule in judged.unasked:
        console.print(f"not asked: {rule}, which needs a model", markup=False)
    console.print(judged.text, markup=False)


def _tell_cases(policy: Policy, tried: list[Tried], as_json: bool) -> None:
    failed = sum(each.wrong is not None for each in tried)
    if as_json:
        cases = [
            {
                "name": each.case.name,
                "place": each.case.place,
                "ok": each.wrong is None,
                "wrong": each.wrong,
                **_document(each.judged),
            }
            for each in tried
        ]
        print_json({"mode": policy.mode, "passed": len(tried) - failed, "failed": failed,
                    "cases": cases})  # fmt: skip
        return
    for number, each in enumerate(tried, start=1):
        if each.wrong:
            name = each.case.name or f"case {number}"
            console.print(f"{name} ({each.case.place}): {each.wrong}", markup=False)
    rules = f"{len(policy.rules)} rule{'' if len(policy.rules) == 1 else 's'}"
    console.print(f"{rules}; {len(tried) - failed} cases as expected, {failed} not")
