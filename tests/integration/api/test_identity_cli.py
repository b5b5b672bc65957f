"""`overline org`, `team`, `key` and `audit` against a running stack."""

from __future__ import annotations

import dataclasses
import json

import psycopg

from tests.integration.running import RunningStack


def test_an_organisation_is_made_kept_and_audited(stack: RunningStack) -> None:
    made = stack.json("org", "create", "acme", "--team", "first", "--cap", "5")
    listed = stack.json("org", "list")["organisations"]
    assert (made["id"], "acme") in [(each["id"], each["name"]) for each in listed]
    acme = dataclasses.replace(
        stack, variables={**stack.variables, "OVERLINE_API_KEY": made["token"]}
    )
    team = acme.json("team", "create", "search")
    # What looks like markup is a name like any other, wherever it is shown.
    assert acme.json("team", "rename", team["id"], "[/x]")["name"] == "[/x]"
    assert {each["name"] for each in acme.json("team", "list")["teams"]} == {"first", "[/x]"}

    key = acme.json(
        *(
            "key",
            "create",
            "[/k]",
            "--team",
            team["id"],
            "--model",
            "scripted",
            "--service-account",
        )
    )
    assert (key["role"], key["models"], key["service_account"]) == ("member", ["scripted"], True)
    holder = dataclasses.replace(
        stack, variables={**stack.variables, "OVERLINE_API_KEY": key["token"]}
    )
    assert holder.json("tasks")["tasks"] == []
    changed = acme.json("key", "change", key["id"], "--any", "models", "--none", "tools")
    assert (changed["models"], changed["tools"]) == (None, [])
    rotated = acme.json("key", "rotate", key["id"], "--overlap", "600")
    assert rotated["token"] != key["token"]
    assert holder.json("tasks")["tasks"] == []
    acme.json("key", "disable", key["id"])
    refused = holder.overline("tasks", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "OVL-2001"
    assert key["token"][-43:] not in refused.stdout + refused.stderr
    assert acme.json("key", "show", key["id"])["disabled"]
    assert {each["name"] for each in acme.json("key", "list")["keys"]} == {"[/k]", "admin"}
    page = acme.overline("key", "list", "--limit", "1")
    assert "[/k]" in page.stdout
    assert f"more: --cursor {key['id']}" in page.stderr
    rest = acme.json("key", "list", "--limit", "1", "--cursor", key["id"])
    assert [each["name"] for each in rest["keys"]] == ["admin"]

    entries = acme.json("audit", "list")["entries"]
    assert [entry["action"] for entry in entries] == [
        "key.disabled",
        "key.rotated",
        "key.changed",
        "key.created",
        "team.changed",
        "team.created",
        "organisation.created",
    ]
    assert entries[-1]["actor"] == "operator"
    assert acme.json("audit", "verify") == {"intact": True, "entries": 7, "first_broken": None}
    for words in (("key", "list"), ("key", "show", key["id"]), ("team", "list"), ("audit", "list")):
        shown = acme.overline(*words)
        assert shown.returncode == 0, shown.stderr
        assert key["token"][-43:] not in shown.stdout
    budget = ("budget", "set", "user", "5", "--of", "[/user]")
    limit = ("limit", "set", "--model", "[/model]", "--requests", "5")
    for words in (budget, budget, ("budget", "list"), limit, ("limit", "list"), ("team", "list")):
        shown = acme.overline(*words)
        assert shown.returncode == 0, (words, shown.stderr)
        assert "[/" in shown.stdout or words == limit
    with psycopg.connect(stack.admin_url, autocommit=True) as superuser:
        superuser.execute("set session_replication_role = replica")
        superuser.execute(
            "update audit_log set detail = '{}' where organisation_id = %s and seq = 4",
            (made["id"],),
        )
    broken = acme.overline("audit", "verify")
    assert (broken.returncode, broken.stdout.strip()) == (1, "broken from entry 4 on")
    assert acme.overline("key", "change", key["id"], "--any", "secrets").returncode == 2
