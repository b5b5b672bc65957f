"""The schema's history: from nothing, from the revision before with rows in it, and by rule."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from uuid_utils.compat import uuid7

from store.bootstrap import (
    alembic_config,
    bootstrap,
    current_revision,
    ensure_demo_identity,
    head_revision,
    migrate,
)
from store.database import Database
from store.errors import StoreError
from store.identity import Principal, authenticate
from store.ledger import ensure_partitions
from tests.integration.store.conftest import APP_PASSWORD, READER_PASSWORD, Server


def revisions() -> list[str]:
    """All revisions from the first to the head."""
    script = ScriptDirectory.from_config(alembic_config())
    return [r.revision for r in reversed(list(script.walk_revisions()))]


def test_the_history_is_one_line() -> None:
    script = ScriptDirectory.from_config(alembic_config())
    assert len(script.get_heads()) == 1
    assert head_revision() == revisions()[-1]


def test_everything_is_safe_to_repeat(server: Server, scratch_database: str) -> None:
    for _ in range(2):
        bootstrap(scratch_database, APP_PASSWORD, READER_PASSWORD)
    assert current_revision(scratch_database) is None
    for _ in range(2):
        assert migrate(scratch_database) == head_revision()
    assert current_revision(scratch_database) == head_revision()


async def test_the_demo_identity_is_made_once(server: Server, scratch_database: str) -> None:
    bootstrap(scratch_database, APP_PASSWORD, READER_PASSWORD)
    migrate(scratch_database)
    created = ensure_demo_identity(scratch_database)
    assert created is not None
    assert ensure_demo_identity(scratch_database) is None
    db = await Database.open(scratch_database, max_size=1)
    try:
        principal = await authenticate(db, created.token)
        assert isinstance(principal, Principal)
        assert principal.organisation_id == created.organisation_id
    finally:
        await db.close()


def test_rows_of_the_first_revision_survive_all_later_ones(
    server: Server, scratch_database: str
) -> None:
    bootstrap(scratch_database, APP_PASSWORD, READER_PASSWORD)
    first = revisions()[0]
    assert migrate(scratch_database, revision=first) == first
    organisation, team, key, task = (uuid7() for _ in range(4))
    with psycopg.connect(scratch_database, autocommit=True) as connection:
        connection.execute("insert into organisations values (%s, 'o')", (organisation,))
        connection.execute("insert into teams values (%s, %s, 't')", (organisation, team))
        connection.execute(
            "insert into api_keys values (%s, %s, %s, 'k', %s, '{tasks}')",
            (organisation, key, team, b"x" * 32),
        )
        connection.execute(
            "insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id,"
            " request_digest, route, input, worst_case_usd)"
            " values (%s, %s, %s, %s, 'w', 'd', 'r', '{}', 1)",
            (organisation, task, team, key),
        )
        connection.execute(
            "insert into model_calls (organisation_id, started_at, team_id, key_id, tags, task_id,"
            " workflow_id, step, call_key, candidate, epoch, route, model, outcome,"
            " uncached_input_tokens, cached_input_tokens, output_tokens,"
            " wasted_uncached_input_tokens, wasted_cached_input_tokens, wasted_output_tokens,"
            " cost_usd, billed_usd, waste_usd, usage_source)"
            " values (%s, now(), %s, %s, '{\"p\": \"x\"}', %s, 'w', 1, 'c', 0, 1, 'r', 'm',"
            " 'succeeded', 1, 2, 3, 0, 0, 0, 0.5, 0.5, 0, 'engine')",
            (organisation, team, key, task),
        )
        before = connection.execute("select * from tasks").fetchall()
    for revision in revisions()[1:]:
        assert migrate(scratch_database, revision=revision) == revision
    with psycopg.connect(scratch_database) as connection:
        after = connection.execute("select * from tasks").fetchall()
        assert [row[: len(before[0])] for row in after] == before
        spend = connection.execute("select billed_usd from spend_by_team_month").fetchall()
        assert [str(row[0]) for row in spend] == ["0.500000000"]


def test_two_at_once_migrate_one_after_the_other(server: Server, scratch_database: str) -> None:
    bootstrap(scratch_database, APP_PASSWORD, READER_PASSWORD)
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]);"
        " from store.bootstrap import migrate; print(migrate(sys.argv[1]))"
    )
    root = str(Path(__file__).resolve().parents[3])
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, scratch_database, root],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.strip() == head_revision()


def test_passwords_do_not_travel_in_clear(server: Server) -> None:
    with psycopg.connect(server.admin_url) as connection:
        stored = connection.execute(
            "select rolpassword from pg_authid where rolname = 'overline_app'"
        ).fetchone()
    assert stored is not None
    assert stored[0].startswith("SCRAM-SHA-256$")
    log = server.postgres.log.read_text(errors="replace")
    assert APP_PASSWORD not in log
    assert READER_PASSWORD not in log


def sql_of_all_revisions() -> str:
    """What `alembic upgrade head --sql` prints."""
    printed = io.StringIO()
    config = alembic_config()
    config.output_buffer = printed
    command.upgrade(config, "head", sql=True)
    return printed.getvalue()


# Matters of taste, with a reason each: token counts fit 32 bits, each revision is one transaction
# (so statements need not be repeatable), and the version table is Alembic's own.
TASTE = (
    "prefer-bigint-over-int",
    "prefer-bigint-over-smallint",
    "prefer-robust-stmts",
    "prefer-text-field",
)


def squawk(sql: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "head.sql"
    script.write_text(sql, encoding="utf-8")
    program = Path(sys.executable).parent / "squawk"
    options = ["--reporter=Gcc", "--pg-version=18.0", f"--exclude={','.join(TASTE)}"]
    return subprocess.run(
        [str(program), *options, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_squawk_finds_nothing_that_would_block(tmp_path: Path) -> None:
    found = squawk(sql_of_all_revisions(), tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr


def test_squawk_would_find_something(tmp_path: Path) -> None:
    bad = "\nalter table tasks add constraint c check (steps > 0);\n"
    found = squawk(sql_of_all_revisions() + bad, tmp_path)
    assert found.returncode != 0
    assert "constraint-missing-not-valid" in found.stdout


def test_printed_sql_is_whole() -> None:
    printed = sql_of_all_revisions()
    tables = set(re.findall(r"create table (\w+)", printed))
    assert {"model_calls", "holds", "audit_log"} <= tables
    assert "\\:" not in printed


async def test_a_month_begins_in_its_own_partition(
    server: Server, admin_db: Database, db: Database
) -> None:
    """One microsecond before midnight UTC belongs to the old month, midnight to the new one."""
    rows = await admin_db.run_untenanted(
        "select date_trunc('month', now() at time zone 'UTC') at time zone 'UTC' as first"
    )
    first = rows[0]["first"].astimezone(UTC)
    organisation = uuid7()
    await admin_db.run_untenanted("insert into organisations values (%s, 'm')", (organisation,))

    async def book(at: datetime) -> str:
        booked = await admin_db.run_untenanted(
            "insert into model_calls (organisation_id, started_at, team_id, key_id, tags, task_id,"
            " workflow_id, step, call_key, candidate, epoch, route, model, outcome,"
            " uncached_input_tokens, cached_input_tokens, output_tokens,"
            " wasted_uncached_input_tokens, wasted_cached_input_tokens, wasted_output_tokens,"
            " cost_usd, billed_usd, waste_usd, usage_source)"
            " values (%(o)s, %(at)s, %(o)s, %(o)s, '{}', %(o)s, 'w', 1, 'c', 0, 1, 'r', 'm',"
            " 'succeeded', 0, 0, 0, 0, 0, 0, 0, 0, 0, 'engine')"
            " returning tableoid::regclass::text as home",
            {"o": organisation, "at": at},
        )
        return str(booked[0]["home"])

    next_month = datetime(first.year + first.month // 12, first.month % 12 + 1, 1, tzinfo=UTC)
    last_moment = next_month - timedelta(microseconds=1)
    assert await book(first) == f"model_calls_{first:%Y_%m}"
    assert await book(last_moment) == f"model_calls_{first:%Y_%m}"
    assert await book(next_month) == f"model_calls_{next_month:%Y_%m}"
    # A year nobody prepared still finds a home: settlement must not fail.
    assert await book(datetime(2099, 1, 1, tzinfo=UTC)) == "model_calls_default"


async def test_partitions_are_made_by_the_processes_and_fenced(
    server: Server, db: Database, admin_db: Database
) -> None:
    assert await ensure_partitions(db, months=14) == 2
    assert await ensure_partitions(db, months=14) == 0
    rows = await admin_db.run_untenanted(
        "select c.relname, c.relrowsecurity and c.relforcerowsecurity as fenced,"
        " (select count(*) from pg_policy p where p.polrelid = c.oid) as policies,"
        " (select count(*) from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal)"
        "   as triggers"
        " from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'model_calls'::regclass"
    )
    assert len(rows) == 16
    assert {(r["fenced"], r["policies"], r["triggers"]) for r in rows} == {(True, 1, 1)}


def test_an_old_server_is_refused(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr("store.bootstrap.OLDEST_SERVER", 990000)
    with pytest.raises(StoreError, match="PostgreSQL 18"):
        bootstrap(server.admin_url, APP_PASSWORD, READER_PASSWORD)
