"""The SQL and the sums of the documentation, on a real database."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

import psycopg
import pytest
from uuid_utils.compat import uuid7

from deploy.local.postgres import PostgresServer
from inference.models.registry import MODELS, ROUTES
from store import journal, money, tasks
from store.bootstrap import bootstrap, create_key, migrate
from store.catalogue import Model, Price, Route, load_catalogue, sync_catalogue
from store.database import Database
from store.identity import Principal
from store.journal import AttemptUsage
from store.pricing import worst_case_usd
from store.provision import create_organisation, create_team
from tests.unit.docs.pages import page, pages

_PASSWORD = "password-of-the-tests"


@dataclass(frozen=True)
class Urls:
    """Connections of one prepared database."""

    admin: str
    app: str
    reader: str


@pytest.fixture(scope="module")
def urls(postgres_server: PostgresServer) -> Urls:
    where = postgres_server.where
    admin = where.url("postgres", where.password, "documented")
    bootstrap(admin, _PASSWORD, _PASSWORD)
    migrate(admin)
    return Urls(
        admin,
        where.url("overline_app", _PASSWORD, "documented"),
        where.url("overline_reader", _PASSWORD, "documented"),
    )


def _statements() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for each in pages():
        blocks = each.blocks("sql") + re.findall(r"overline psql -c '([^']+)'", each.text)
        for block in blocks:
            bare = re.sub(r"--.*", "", block)
            found += [(str(each.path), s.strip()) for s in bare.split(";") if s.strip()]
    return found


def test_every_query_runs_for_the_people_it_is_for(urls: Urls) -> None:
    statements = _statements()
    assert len(statements) > 15
    with psycopg.connect(urls.reader) as people:
        for where, sql in statements:
            sql = sql.replace("'...'", f"'{uuid7()}'")
            try:
                people.execute(sql.encode())
            except psycopg.Error as error:
                pytest.fail(f"{where}: {sql}\n{error}")


class Example:
    """The worked example of docs/tenancy-and-money.md, carried out."""

    def __init__(self, urls: Urls, db: Database, who: Principal) -> None:
        self._urls, self._db, self._who = urls, db, who
        self.task_id = uuid7()
        self.call = f"{self.task_id}:1"
        self._key = f"{self.call}#0"

    async def run(self) -> tuple[Decimal, money.Charge]:
        """Return what was held, and the charge."""
        organisation = self._who.organisation_id
        catalogue = await load_catalogue(self._db)
        names = [str(each["model"]) for each in catalogue.routes["default"].candidates]
        held = worst_case_usd(catalogue, names, 256)
        await tasks.submit_task(
            self._db, self._who, task_id=self.task_id, idempotency_key=None, request_digest="d",
            input={"input": "?"}, user=None, tags={}, route="default", worst_case_usd=held,
            max_cost_usd=None,
        )  # fmt: skip
        await money.admit(
            self._db, organisation_id=organisation, team_id=self._who.team_id,
            key_id=self._who.key_id, task_id=self.task_id, step=1, call_key=self.call,
            amount_usd=held,
        )  # fmt: skip
        await journal.stage_prompt(
            self._db, organisation_id=organisation, workflow_id=f"task-{self.task_id}",
            task_id=self.task_id, step=1, call_key=self.call, candidate=0, channel="answer",
            model="smollm2-135m-instruct", model_version="v", tokenizer_version="t",
            deployment="d", prompt_ids=list(range(412)),
        )  # fmt: skip
        await self._attempt(journaled=115, usage=None)
        await journal.resolve_attempt(
            self._db, organisation_id=organisation, generation_key=self._key, epoch=1,
            usage=AttemptUsage(412, 300, 120, "engine"), outcome="lost", cause="worker_lost",
        )  # fmt: skip
        await self._attempt(journaled=60, usage=AttemptUsage(527, 400, 60, "engine"))
        charge = await money.settle(
            self._db,
            money.Settlement(
                organisation_id=organisation, task_id=self.task_id, step=1, call_key=self.call,
                outcome="succeeded", generation_key=self._key,
            ),
        )  # fmt: skip
        return held, charge

    async def _attempt(self, *, journaled: int, usage: AttemptUsage | None) -> None:
        organisation = self._who.organisation_id
        begun = await journal.begin_attempt(
            self._db, organisation_id=organisation, generation_key=self._key,
            replica="127.0.0.1:1", temporal_attempt=1,
        )  # fmt: skip
        tokens = list(range(journaled))
        if usage is None:
            await journal.append_chunk(
                self._db, organisation_id=organisation, generation_key=self._key,
                epoch=begun.epoch, seq=begun.next_seq, token_ids=tokens, text="a",
            )  # fmt: skip
            return
        await journal.finish_attempt(
            self._db, organisation_id=organisation, generation_key=self._key, epoch=begun.epoch,
            seq=begun.next_seq, token_ids=tokens, text="b", usage=usage, finish_reason="stop",
        )  # fmt: skip

    def ledger(self) -> list[tuple[object, ...]]:
        """The rows as the page shows them."""
        with psycopg.connect(self._urls.admin) as owner:
            return owner.execute(
                "select uncached_input_tokens, cached_input_tokens, output_tokens, cost_usd,"
                " billed_usd, waste_usd, waste_cause from model_calls where task_id = %s"
                " order by epoch",
                (self.task_id,),
            ).fetchall()


async def test_the_example_in_numbers_is_right(urls: Urls) -> None:
    organisation = create_organisation(urls.admin, "documented")
    team = create_team(urls.admin, organisation, "documented")
    key = create_key(urls.admin, organisation, team, "documented")
    await _sync(urls.admin)
    db = await Database.open(urls.app, max_size=2, name="tests-docs")
    try:
        example = Example(urls, db, Principal(organisation, team, key.key_id, ("tasks",)))
        held, charge = await example.run()
    finally:
        await db.close()

    text = page("docs/tenancy-and-money.md")
    *attempts, total = text.table("ledger row")
    told = [_row(cells) for cells in attempts]
    assert example.ledger() == told
    assert f"${held:f}" in text.text
    assert _row(total)[:6] == tuple(
        sum((row[n] for row in told), start=type(told[0][n])(0)) for n in range(6)
    )
    assert _row(total)[4:6] == (charge.billed_usd, charge.waste_usd)
    said = f"{charge.prompt_tokens} prompt tokens, {charge.cached_tokens} cached,"
    assert f"{said} {charge.completion_tokens} completion tokens" in " ".join(text.text.split())
    _assert_spent(urls, organisation, charge.billed_usd)


def _row(cells: list[str]) -> tuple[object, ...]:
    _, *numbers, cause = cells
    counts = tuple(int(cell) for cell in numbers[:3])
    return (*counts, *(Decimal(cell.strip("$")) for cell in numbers[3:]), cause.strip("`"))


async def _sync(admin_url: str) -> None:
    models = [
        Model(
            m.name, m.version, m.context_window, m.max_output_tokens, ("chat",), "t", m.licence
        )
        for m in MODELS.values()
    ]  # fmt: skip
    prices = [
        Price(
            m.name,
            m.price.input_usd_per_million,
            m.price.cached_input_usd_per_million,
            m.price.output_usd_per_million,
            m.price.valid_from,
        )
        for m in MODELS.values()
    ]
    routes = [Route(r.name, r.description, tuple(map(dict, r.candidates))) for r in ROUTES]
    db = await Database.open(admin_url, max_size=1, name="tests-docs-admin")
    try:
        await sync_catalogue(db, models, [], prices, routes)
    finally:
        await db.close()


def _assert_spent(urls: Urls, organisation: UUID, billed: Decimal) -> None:
    with psycopg.connect(urls.admin) as owner:
        rows = owner.execute(
            "select spent_usd, held_usd from budgets where organisation_id = %s", (organisation,)
        ).fetchall()
    assert len(rows) == 3
    assert set(rows) == {(billed, Decimal(0))}
