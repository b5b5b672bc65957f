"""Finding the process to kill, and killing it as a power cut would."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from temporalio.client import Client

from tests.integration.running import RunningStack

__all__ = ["VICTIMS", "kill", "model_processes", "pids_of"]

VICTIMS = ("worker", "workers", "api", "triton", "model process", "temporal", "postgres")


async def pids_of(victim: str, stack: RunningStack, task_id: str) -> list[int]:
    """Return the processes to kill.

    Args:
        victim: One of `VICTIMS`; `worker` is the one that runs the task's activity now.
        stack: The stack they are in.
        task_id: The task that is hit.
    """
    if victim == "worker":
        return [await _pid_of_running_worker(stack, task_id)]
    if victim == "workers":
        return [pid for part, pid in _parts(stack).items() if part.startswith("worker-")]
    if victim == "model process":
        return model_processes(_parts(stack)["triton"])
    return [_parts(stack)[victim]]


def kill(pids: list[int], how: signal.Signals = signal.SIGKILL) -> None:
    """End processes, or halt them, without giving them a chance to say or do anything."""
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def model_processes(triton: int) -> list[int]:
    """Return the processes in which Triton's models run."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if b"python_backend_stub" in command and os.getpgid(int(entry.name)) == triton:
                found.append(int(entry.name))
    return found


def _parts(stack: RunningStack) -> dict[str, int]:
    return {
        name: part["pid"] for name, part in stack.state().parts.items() if part["pid"] is not None
    }


async def _pid_of_running_worker(stack: RunningStack, task_id: str) -> int:
    client = await Client.connect(stack.settings.temporal_address)
    description = await client.get_workflow_handle(f"task-{task_id}").describe()
    (pending,) = description.raw_description.pending_activities
    pid = int(pending.last_worker_identity.partition("@")[0])
    assert pid in _parts(stack).values()
    return pid
