"""`overline doctor`: is this machine fit, is the stack well, and what to do where not."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from api.cli.render import console, print_json
from deploy.local.engine_env import is_current
from deploy.local.errors import StackError
from deploy.local.home import Home
from deploy.local.plan import ADDRESS_OF, given_settings
from deploy.local.ports import DEFAULT_PORTS, is_free
from deploy.local.state import read_state
from settings import Settings, load_settings

__all__ = ["Finding", "doctor"]

_FREE_GB = 3.0
_LIMIT_S = 6.0
_SIGNS = {"ok": "[green]✓[/green]", "warning": "[yellow]![/yellow]", "problem": "[red]✗[/red]"}


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was looked at.
        verdict: `ok`, `warning` (works, with a limit) or `problem`.
        detail: What was seen.
        remedy: What to do about it; empty when all is well.
    """

    check: str
    verdict: Literal["ok", "warning", "problem"]
    detail: str
    remedy: str = ""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the machine, and the stack if one runs. Exits 1 when there is a problem."""
    findings = asyncio.run(_examine())
    well = all(finding.verdict != "problem" for finding in findings)
    if as_json:
        print_json({"well": well, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            console.print(f"{_SIGNS[finding.verdict]} {finding.check:<18}", end=" ")
            console.print(finding.detail, markup=False)
            if finding.remedy:
                console.print(f"    → {finding.remedy}", markup=False)
    if not well:
        raise typer.Exit(1)


async def _examine() -> list[Finding]:
    home = Home.open(load_settings().home)
    findings = [_python(), _space(home.folder), *_programs(), _engine(load_settings())]
    state = read_state(home)
    if not state.running:
        findings.append(_ports())
        findings.append(
            Finding("stack", "warning", f"nothing runs in {home.folder}", "`overline up` starts it")
        )
        return findings
    for name, part in state.parts.items():
        fine = part["state"] in ("ready", "external")
        remedy = "" if fine else f"`overline logs {name}` shows why"
        said = f"{part['state']} {part['text']}".strip()
        findings.append(Finding(name, "ok" if fine else "problem", said, remedy))
    findings += await _answers(load_settings())
    return findings


def _python() -> Finding:
    version = f"Python {sys.version.split()[0]} in {sys.prefix}"
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Finding("python", "ok", version)
    return Finding("python", "problem", version, "use Python 3.11, 3.12 or 3.13")


def _space(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / 1e9
    said = f"{free:.1f} GB free at {folder}"
    if free >= _FREE_GB:
        return Finding("disk", "ok", said)
    return Finding(
        "disk", "warning", said, f"{_FREE_GB:.0f} GB are comfortable; OVERLINE_HOME moves the state"
    )


def _programs() -> list[Finding]:
    from deploy.local import postgres, temporal

    given = given_settings().model_fields_set
    found = []
    for part, program in (
        ("postgres", lambda: postgres.programs() / "postgres"),
        ("temporal", temporal.program),
    ):
        if ADDRESS_OF[part] in given:
            setting = f"OVERLINE_{ADDRESS_OF[part].upper()}"
            found.append(Finding(f"{part} program", "ok", f"not needed: {setting} is set"))
        else:
            found.append(_runs(f"{part} program", program))
    return found


def _runs(check: str, program: Callable[[], Path]) -> Finding:
    try:
        done = subprocess.run(
            [program(), "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired, StackError) as error:
        return Finding(check, "problem", str(error).splitlines()[0], _last_line(error))
    if done.returncode == 0:
        return Finding(check, "ok", done.stdout.strip().splitlines()[0])
    said = (done.stderr.strip() or f"ended with {done.returncode}").splitlines()[0]
    return Finding(check, "problem", said, "point its setting at a server of your own")


def _last_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[-1] if len(lines) > 1 else "install Overline with the extra `local`"


def _engine(settings: Settings) -> Finding:
    folder = settings.engine_environment
    if is_current(folder):
        return Finding("engine", "ok", f"installed in {folder}")
    return Finding(
        "engine", "warning", f"not installed in {folder}", "`overline up` installs it (some 600 MB)"
    )


def _ports() -> Finding:
    taken = [f"{port} ({name})" for name, port in DEFAULT_PORTS.items() if not is_free(port)]
    if not taken:
        return Finding("ports", "ok", "the usual ones are free")
    return Finding("ports", "warning", f"taken: {', '.join(taken)}", "free ones are used instead")


async def _answers(settings: Settings) -> list[Finding]:
    """Ask each part as our processes do, with the addresses they have."""
    checks: list[tuple[str, str, Callable[[Settings], Awaitable[str]]]] = [
        ("database answers", "OVERLINE_DATABASE_URL", _ask_database),
        ("temporal answers", "OVERLINE_TEMPORAL_ADDRESS", _ask_temporal),
        ("models answer", "OVERLINE_TRITON_URLS", _ask_models),
        ("api answers", "OVERLINE_API_URL", _ask_api),
        ("key is accepted", "OVERLINE_API_KEY", _ask_key),
    ]
    return [await _ask(*check, settings) for check in checks]


async def _ask(
    check: str, setting: str, ask: Callable[[Settings], Awaitable[str]], settings: Settings
) -> Finding:
    remedy = f"`overline status` and `overline logs`; {setting} says where it is looked for"
    try:
        return Finding(check, "ok", await asyncio.wait_for(ask(settings), _LIMIT_S))
    except TimeoutError:
        return Finding(check, "problem", f"no answer within {_LIMIT_S:.0f} s", remedy)
    except Exception as error:  # whatever a client raises is the finding
        said = str(error).strip().splitlines() or [""]
        return Finding(check, "problem", f"{type(error).__name__}: {said[0]}", remedy)


async def _ask_database(settings: Settings) -> str:
    from store import bootstrap

    url = settings.database_url.get_secret_value()
    current = await asyncio.to_thread(bootstrap.current_revision, url)
    if current != bootstrap.head_revision():
        raise RuntimeError(f"schema {current}, this version needs {bootstrap.head_revision()}")
    return f"schema {current}"


async def _ask_temporal(settings: Settings) -> str:
    from temporalio.client import Client

    from workflows.client import connect_kwargs

    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    if not await client.service_client.check_health():
        raise RuntimeError("it does not serve")
    return settings.temporal_address


async def _ask_models(settings: Settings) -> str:
    from deploy.local.triton import models_problem

    for url in settings.triton_urls:
        if (problem := await models_problem(url, settings.models)) is not None:
            raise RuntimeError(f"{url}: {problem}")
    return ", ".join(settings.models)


async def _ask_api(settings: Settings) -> str:
    import httpx2

    async with httpx2.AsyncClient(timeout=_LIMIT_S) as client:
        answer = await client.get(f"{settings.api_url}/readyz")
    if answer.status_code != 200:
        raise RuntimeError(f"/readyz answers {answer.status_code}: {answer.text[:200]}")
    return settings.api_url


async def _ask_key(settings: Settings) -> str:
    import httpx2

    if settings.api_key is None:
        raise RuntimeError("no key is set")
    headers = {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"}
    async with httpx2.AsyncClient(timeout=_LIMIT_S, headers=headers) as client:
        answer = await client.get(f"{settings.api_url}/v1/tasks", params={"limit": 1})
    if answer.status_code != 200:
        raise RuntimeError(f"the API answers {answer.status_code}")
    return settings.api_key.get_secret_value().rpartition("_")[0]
