"""The life of an embedded stack: up, down, up again, and everything that can go wrong between."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx2
import psycopg
import pytest

from deploy.local.home import Home, StackLock
from deploy.local.ports import DEFAULT_PORTS, free_port, is_free
from tests.integration.running import OVERLINE, RunningStack

Make = Callable[..., RunningStack]


def test_it_comes_up_says_where_and_answers(stack: RunningStack) -> None:
    status = stack.json("status")
    assert status["ready"]
    assert set(status["parts"]) == {"postgres", "temporal", "triton", "worker-1", "worker-2", "api"}
    assert all(part["pid"] for part in status["parts"].values())
    assert httpx2.get(f"{status['urls']['api']}/readyz").status_code == 200
    web = httpx2.get(status["urls"]["temporal_ui"], follow_redirects=True)
    assert web.headers["content-type"].startswith("text/html")


def test_every_part_leads_a_process_group_of_its_own(stack: RunningStack) -> None:
    pids = [part["pid"] for part in stack.state().parts.values()]
    assert [os.getpgid(pid) for pid in pids] == pids


def test_a_second_up_is_refused_and_says_why(stack: RunningStack) -> None:
    second = stack.overline("up", "--detach")
    assert second.returncode == 3
    assert "already runs" in second.stderr
    assert "overline down" in second.stderr
    as_json = json.loads(stack.overline("up", "--json").stdout)
    assert as_json["error"]["code"] == "already_running"
    assert stack.json("status")["ready"]


def test_the_doctor_finds_it_well(stack: RunningStack) -> None:
    report = stack.json("doctor")
    assert report["well"], report
    checked = {finding["check"] for finding in report["findings"]}
    assert {"database answers", "models answer", "key is accepted", "worker-2"} <= checked


def test_psql_reads_every_organisation_and_changes_nothing(stack: RunningStack) -> None:
    # Other tests make organisations of their own.
    before = stack.json("psql", "-c", "select name from organisations")
    assert {"name": "demo"} in before
    refused = stack.overline("psql", "-c", "delete from organisations")
    assert refused.returncode == 1
    assert stack.json("psql", "-c", "select count(*) as n from organisations") == [
        {"n": len(before)}
    ]


def test_the_config_shows_no_secret(stack: RunningStack) -> None:
    shown = stack.overline("config", "--json").stdout + stack.overline("config").stdout
    for line in (stack.folder / "overline.env").read_text().splitlines():
        name, _, value = line.partition("=")
        if name in ("OVERLINE_API_KEY", "OVERLINE_PAYLOAD_KEYS", "OVERLINE_CODEC_TOKEN"):
            assert value not in shown
    password = psycopg.conninfo.conninfo_to_dict(stack.settings.database_url.get_secret_value())
    assert str(password["password"]) not in shown


def test_no_log_holds_a_secret(stack: RunningStack) -> None:
    secrets = json.loads((stack.folder / "secrets.json").read_text())
    logs = "".join(log.read_text(errors="replace") for log in (stack.folder / "logs").iterdir())
    assert logs
    assert [name for name, value in secrets.items() if value.rpartition(":")[2] in logs] == []


def test_logs_are_shown_by_part(stack: RunningStack) -> None:
    assert "ready to accept connections" in stack.overline("logs", "postgres").stdout
    unknown = stack.overline("logs", "nothing")
    assert unknown.returncode == 1
    assert "worker-1" in unknown.stderr


@pytest.mark.parametrize("part", ["worker-1", "api", "temporal", "postgres", "triton"])
def test_a_part_that_is_killed_comes_back(stack: RunningStack, part: str) -> None:
    old = stack.kill(part)
    state = stack.wait_until_restarted(part, old)
    assert state.parts[part]["restarts"] >= 1
    said = stack.overline("logs", "supervisor").stdout
    assert f"{part:<10} restarting was killed by SIGKILL" in said


def test_a_model_process_that_dies_behind_a_ready_server_is_noticed(stack: RunningStack) -> None:
    old = stack.pid("triton")
    stubs = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_stub(entry, old)
    ]
    assert stubs
    os.kill(stubs[0], signal.SIGKILL)
    stack.wait_until_restarted("triton", old)


def _is_stub(entry: Path, group: int) -> bool:
    try:
        command = (entry / "cmdline").read_bytes()
        return b"python_backend_stub" in command and os.getpgid(int(entry.name)) == group
    except OSError:
        return False


def test_state_survives_down(own_stack: Make) -> None:
    running = own_stack()
    first = running.up()
    running.down()
    assert running.overline("status").returncode == 3
    second = running.up()
    assert second["api_key"] == first["api_key"]
    headers = {"Authorization": f"Bearer {first['api_key']}"}
    assert httpx2.get(f"{second['urls']['api']}/v1/tasks", headers=headers).status_code == 200
    running.down()
    assert running.processes() == []
    assert running.json("down") == {"stopped": False, "home": str(running.folder)}


def test_usual_ports_that_are_taken_are_left_alone(own_stack: Make) -> None:
    with ExitStack() as held:
        for port in DEFAULT_PORTS.values():
            if is_free(port):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        running = own_stack(OVERLINE_API_PORT=str(free_port()))
        started = running.up("--only", "postgres,temporal")
        assert not set(started["ports"].values()) & set(DEFAULT_PORTS.values())
        assert psycopg.connect(running.admin_url.replace("/overline", "/postgres")).closed == 0


def test_a_killed_supervisor_takes_everything_along_and_the_next_one_starts(
    own_stack: Make,
) -> None:
    running = own_stack()
    running.up("--only", "postgres,temporal")
    holder = StackLock(Home(running.folder)).holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while running.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert running.processes() == []
    assert running.overline("status").returncode == 3
    assert running.up("--only", "postgres,temporal")["state"] == "ready"


def test_a_server_of_the_users_own_is_used_and_not_started(
    stack: RunningStack, own_stack: Make
) -> None:
    settings = stack.settings
    running = own_stack(
        OVERLINE_TEMPORAL_ADDRESS=settings.temporal_address,
        OVERLINE_TRITON_URLS=",".join(settings.triton_urls),
        OVERLINE_MODELS_DIR=str(stack.folder / "models"),
        OVERLINE_TASK_QUEUE="another",
    )
    running.up()
    parts = running.json("status")["parts"]
    assert parts["temporal"]["state"] == parts["triton"]["state"] == "external"
    assert not (running.folder / "temporal.db").exists()


def test_ctrl_c_ends_a_stack_in_the_foreground(own_stack: Make) -> None:
    running = own_stack()
    process = subprocess.Popen(
        [OVERLINE, "up", "--only", "postgres,temporal", "--json"],
        env=running.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["state"] == "ready"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert running.processes() == []
