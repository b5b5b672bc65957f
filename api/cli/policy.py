"""`overline policy`: what texts are screened by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from api.cli.client import ApiClient
from api.cli.policy_test import read_policy, try_policy
from api.cli.render import console, friendly, print_json
from settings import load_settings

__all__ = ["policy"]

policy = typer.Typer(no_args_is_help=True, add_completion=False)
policy.command("test")(try_policy)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Team = Annotated[
    str | None,
    typer.Option(help="Of the team with this id; without it, the organisation's, for all teams."),
]


@policy.command("show")
def show(team: Team = None, as_json: Json = False) -> None:
    """Show the policy that holds for a team, whosever it is, or the organisation's own."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get("/v1/policy", {"team": team})
    if as_json:
        print_json(found)
        return
    whose = (
        "the organisation's" if found["scope"] == "organisation" else f"team {found['team_id']}'s"
    )
    console.print(
        f"# version {found['version']}, {whose}, set {found['created_at'][:19].replace('T', ' ')}"
        f" by {found['created_by']}",
        markup=False,
    )
    text = yaml.safe_dump(found["document"], sort_keys=False, allow_unicode=True)
    console.print(text.rstrip(), markup=False)


@policy.command("set")
def set_policy(
    file: Annotated[Path, typer.Argument(help="The policy, in YAML or JSON.")],
    team: Team = None,
    as_json: Json = False,
) -> None:
    """Set a policy from a file; it holds from the next call on. Its test cases stay in the file."""
    document = read_policy(file, as_json)
    document.pop("cases", None)
    with friendly(as_json), ApiClient(load_settings()) as api:
        made = api.put(_path(team), document)
    _told(made, as_json, f"version {made['version']} holds")


@policy.command("unset")
def unset(team: Team = None, as_json: Json = False) -> None:
    """Take a team's own policy away, so that the organisation's holds; or the organisation's."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        gone = api.delete(_path(team))
    _told(gone, as_json, f"it is gone, says version {gone['version']}")


def _path(team: str | None) -> str:
    return "/v1/policy" if team is None else f"/v1/policy?team={team}"


def _told(answer: Any, as_json: bool, words: str) -> None:
    if as_json:
        print_json(answer)
    else:
        console.print(words, markup=False)
