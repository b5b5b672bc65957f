"""What the README and docs/ claim, against the code: each claim here can be found false."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import typer.main

from api import cli
from api.app import create_app
from deploy.local.ports import DEFAULT_PORTS
from inference.contract import REFUSALS
from inference.models.registry import MODELS
from observability.metrics import REGISTRY
from settings import Settings
from tests.unit.docs.pages import ROOT, Page, page, pages
from workflows.errors import ALL_ERRORS

_SQL = "\n".join(path.read_text() for path in sorted((ROOT / "migrations/sql").glob("*.sql")))
TABLES = set(re.findall(r"^create table (\w+) \(", _SQL, re.MULTILINE))
VIEWS = set(re.findall(r"^create view (\w+) ", _SQL, re.MULTILINE))
_COMMAND = re.compile(r"\boverline ([a-z]+(?:-[a-z]+)*)((?: [^\n`|&;#]*)?)")
_KINDS = r"py|sql|txt|in|toml|yaml|yml|md|json|jinja|pbtxt"
_FILE = re.compile(rf"^[\w.-]+(?:/[\w.-]+)+\.(?:{_KINDS})$")

every_page = pytest.mark.parametrize("each", pages(), ids=lambda each: str(each.path))


def _said_to_be_typed(each: Page) -> str:
    return "\n".join([*each.blocks("bash", "sh", "text"), *each.spans])


@every_page
def test_links_lead_somewhere(each: Page) -> None:
    for target in each.links:
        name, _, anchor = target.partition("#")
        path = (ROOT / each.path.parent / name).resolve() if name else ROOT / each.path
        assert path.exists(), f"{each.path}: {target}"
        if anchor:
            assert anchor in page(str(path.relative_to(ROOT))).anchors, f"{each.path}: {target}"


@every_page
def test_commands_and_their_options_exist(each: Page) -> None:
    group = typer.main.get_command(cli._app)
    for name, words in _COMMAND.findall(_said_to_be_typed(each)):
        command = group.get_command(None, name)  # type: ignore[attr-defined, arg-type]
        assert command is not None, f"{each.path}: overline {name}"
        if sub := getattr(command, "commands", {}):  # a command with commands of its own
            first = words.split()[0] if words.split() else "--help"
            command = sub.get(first) or command
            assert first.startswith("-") or first in sub, f"{each.path}: overline {name}{words}"
        known = {option for param in command.params for option in param.opts} | {"--help"}
        given = re.findall(r"(?<=\s)--?[a-z][a-z-]*", re.sub(r"'[^']*'|\"[^\"]*\"", "", words))
        assert set(given) <= known, f"{each.path}: overline {name}{words}"


@every_page
def test_files_that_are_named_exist(each: Page) -> None:
    for span in each.spans:
        if _FILE.match(span) and not span.startswith(("pg/", "logs/", "models/")):
            assert (ROOT / span).exists(), f"{each.path}: {span}"


@every_page
def test_make_targets_exist(each: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"\bmake ([a-z-]+)\b", _said_to_be_typed(each))
    assert set(named) <= targets, each.path


@every_page
def test_settings_that_are_named_exist(each: Page) -> None:
    known = {f"OVERLINE_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"\bOVERLINE_[A-Z_]*[A-Z]\b", each.text)) <= known, each.path


@every_page
def test_sql_reads_from_what_there_is(each: Page) -> None:
    typed = [*each.blocks("sql"), *re.findall(r"psql -c ['\"]([^'\"]+)", each.text)]
    for sql in typed:
        for name in re.findall(r"\b(?:from|join)\s+([a-z_]+)\b(?!\s*\()", sql):
            assert name in TABLES | VIEWS, f"{each.path}: {name}"


def test_every_error_is_documented_and_no_other() -> None:
    rows = page("docs/errors.md").table("code")
    told = {(code, name, status, title) for code, name, status, title, *_ in rows}
    assert told == {(e.code, e.__name__, str(e.status), e.title) for e in ALL_ERRORS}
    assert len(rows) == len(told)
    named = {code for each in pages() for code in re.findall(r"OVL-\d{4}", each.text)}
    assert named == {error.code for error in ALL_ERRORS}


def test_every_engine_refusal_is_documented_and_no_other() -> None:
    told = {row[0] for row in page("docs/engine.md").table("refusal")}
    assert told == set(REFUSALS)


def _default(name: str) -> str:
    field = Settings.model_fields[name]
    if field.default_factory is not None:
        return "~/.overline"
    value = field.default
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if value in (None, "", ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def test_every_setting_is_documented_with_its_default() -> None:
    told = {row[0]: row[1] for row in page("docs/settings.md").table("setting")}
    assert told == {f"OVERLINE_{name.upper()}": _default(name) for name in Settings.model_fields}


def test_every_table_and_view_is_documented_and_no_other() -> None:
    data = page("docs/data.md")
    assert [row[0] for row in data.table("table")] == sorted(TABLES)
    assert [row[0] for row in data.table("view")] == sorted(VIEWS)


def test_every_endpoint_is_documented_and_no_other() -> None:
    paths = create_app(Settings(_env_file=None)).openapi()["paths"]
    told = {(row[0], row[1]) for row in page("docs/rest.md").table("method")}
    assert told == {(verb.upper(), path) for path, verbs in paths.items() for verb in verbs}


def test_every_metric_is_documented_and_no_other() -> None:
    # The API's edge registers its own; importing the application has loaded it.
    known = {family.name for family in REGISTRY.collect() if family.name.startswith("overline_")}
    told = {row[0].removesuffix("_total") for row in page("docs/observability.md").table("metric")}
    assert told == known


def test_what_a_program_of_the_tour_reads_was_exported(tmp_path: Path) -> None:
    """`overline.env` exports nothing: exported addresses would be those of one's own servers."""
    typed = "\n".join(page("README.md").blocks("bash"))
    (tmp_path / ".overline").mkdir()
    settings = "".join(f"{name}=here\n" for name in ("OVERLINE_API_URL", "OVERLINE_API_KEY"))
    (tmp_path / ".overline" / "overline.env").write_text(settings)
    read = set(re.findall(r'os\.environ\["(\w+)"\]', typed))
    assert read
    lines = [line for line in typed.splitlines() if line.startswith((". ", "export OVERLINE"))]
    script = "\n".join([*lines, "env"])
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, check=True)
    assert {f"{name}=here" for name in read} <= set(done.stdout.decode().splitlines())


def test_ports_are_as_they_are() -> None:
    told = {row[0]: int(row[1]) for row in page("docs/operations.md").table("port of")}
    assert told == dict(DEFAULT_PORTS)


def test_models_are_as_they_are() -> None:
    rows = {row[0]: row[1:4] for row in page("docs/09-models.md").table("model")}
    assert rows == {
        model.name: [model.engine, str(model.context_window), model.licence]
        for model in MODELS.values()
    }


@pytest.mark.parametrize("told", ["docs/promises.md", "docs/reported-failures.md"])
def test_tests_that_prove_a_promise_exist(told: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page(told).text)
    assert len({file for file, _ in named}) >= 10
    for file, test in named:
        text = (ROOT / file).read_text()
        assert not test or re.search(rf"def {test}\(", text), f"{file}::{test}"


def test_every_page_is_in_the_index() -> None:
    index = page("docs/index.md")
    listed = {Path(link.partition("#")[0]).name for link in index.links}
    assert {each.path.name for each in pages()} - {"README.md", "index.md"} <= listed
