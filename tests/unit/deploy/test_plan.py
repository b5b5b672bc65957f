"""What a user set is honoured; everything else is decided, kept and written down."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deploy.local.errors import StackError
from deploy.local.home import Home
from deploy.local.plan import Plan
from deploy.local.ports import DEFAULT_PORTS
from settings import Settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    import os

    for name in [name for name in os.environ if name.startswith("OVERLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Home.open(tmp_path / "state")


def test_all_parts_are_ours_by_default(home: Home) -> None:
    assert Plan.make(home).ours == {"postgres", "temporal", "triton", "worker", "api"}


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("OVERLINE_DATABASE_URL", "postgresql://me:pw@db.example.com/overline", "postgres"),
        ("OVERLINE_TEMPORAL_ADDRESS", "temporal.example.com:7233", "temporal"),
        ("OVERLINE_TRITON_URLS", "a.example.com:8001,b.example.com:8001", "triton"),
    ],
)
def test_a_part_of_the_users_own_is_not_started(
    home: Home, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, part: str
) -> None:
    monkeypatch.setenv(variable, value)
    plan = Plan.make(home)
    assert part not in plan.ours
    assert plan.variables()[variable] == value


def test_what_an_earlier_stack_wrote_is_not_a_users_wish(home: Home) -> None:
    Plan.make(home).write_settings()
    assert "postgres" in Plan.make(home).ours


def test_a_dotenv_file_counts_as_the_users_wish(home: Home) -> None:
    Path(".env").write_text("OVERLINE_TEMPORAL_ADDRESS=temporal.example.com:7233\n")
    assert "temporal" not in Plan.make(home).ours


def test_a_port_that_was_asked_for_and_is_taken_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("OVERLINE_API_PORT", str(server.getsockname()[1]))
        with pytest.raises(StackError, match="OVERLINE_API_PORT"):
            Plan.make(home)


def test_port_0_gives_every_part_a_free_port(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLINE_API_PORT", "0")
    plan = Plan.make(home)
    assert not set(plan.ports.values()) & set(DEFAULT_PORTS.values())
    assert plan.variables()["OVERLINE_API_PORT"] == str(plan.ports["api"]) != "0"


def test_every_process_reads_the_written_settings(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan.make(home)
    plan.secrets.api_key = "ol_demo"
    plan.write_settings()
    assert home.settings.stat().st_mode & 0o777 == 0o600
    read = Settings(_env_file=(home.settings,))
    assert read.api_url == plan.api_url
    assert read.database_url.get_secret_value() == plan.database_url
    assert read.reader_database_url is not None
    assert read.triton_urls == plan.triton_urls
    assert read.api_key is not None
    assert read.api_key.get_secret_value() == "ol_demo"
    assert read.payload_keys.get_secret_value() == plan.secrets.payload_keys


def test_the_superusers_password_is_not_among_them(home: Home) -> None:
    plan = Plan.make(home)
    plan.write_settings()
    assert plan.secrets.postgres not in home.settings.read_text()
    assert plan.secrets.postgres not in "".join(plan.variables().values())
