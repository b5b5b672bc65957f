"""A tritonserver of the tests' own, started as the embedded stack starts it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.local.ports import free_port
from deploy.local.processes import end_group, group_members, spawn
from deploy.local.triton import TritonPart
from inference.client import TritonClient
from inference.messages import Final, GenerationRequest
from inference.prompt import Sampling

START_LIMIT_S = 90.0


class RunningEngine:
    """Start, break, restart, stop."""

    def __init__(self, folder: Path, engine_env: Path, models: Sequence[str]) -> None:
        ports = {n: free_port() for n in ("triton_grpc", "triton_http", "triton_metrics")}
        self.models_folder = folder / "models"
        self.part = TritonPart(folder / "triton", engine_env, models, self.models_folder, ports)
        self._log = folder / "triton.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._argv: Sequence[str] = ()

    @property
    def url(self) -> str:
        return self.part.url

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def model_processes(self) -> list[int]:
        """The processes behind the models."""
        return [pid for pid in group_members(self.pid) if pid != self.pid]

    def shared_memory(self) -> list[Path]:
        """Regions of this server, those of a killed one included."""
        prefix = next(arg for arg in self._argv if "shm-region" in arg).rpartition("=")[2]
        return sorted(Path("/dev/shm").glob(f"{prefix}*"))

    async def start(self) -> None:
        await asyncio.to_thread(self.part.prepare, lambda line: None)
        launch = self.part.launch()
        self._argv = launch.argv
        self._process = spawn(launch, self._log)
        deadline = time.monotonic() + START_LIMIT_S
        while (problem := await self.part.problem()) is not None:
            died = self._process.poll() is not None
            if died or time.monotonic() > deadline:
                text = self._log.read_text(errors="replace")[-3000:]
                raise AssertionError(f"triton did not start: {problem}\n{text}")
            await asyncio.sleep(0.1)

    def stop(self, patience_s: float = 8.0) -> None:
        if self._process is not None:
            end_group(self._process.pid, patience_s=patience_s, process=self._process)
            self._process = None


class Told:
    """Everything a generation gave."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.final: Final | None = None
        self.first_s = 0.0

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def end(self) -> Final:
        assert self.final is not None
        return self.final


async def tell(client: TritonClient, model: str, input_ids: list[int], **given: Any) -> Told:
    """Runs a generation to its end."""
    given.setdefault("request_id", f"t{time.monotonic_ns()}@1")
    given.setdefault("sampling", Sampling(max_tokens=200))
    told = Told()
    await collect(client, GenerationRequest(model, input_ids=input_ids, **given), told)
    return told


async def collect(client: TritonClient, request: GenerationRequest, told: Told) -> None:
    """Like `tell`, and keeps what came when it fails."""
    started = time.perf_counter()
    async for chunk in client.generate(request):
        if not told.first_s and chunk.token_ids:
            told.first_s = time.perf_counter() - started
        told.token_ids += chunk.token_ids
        told.texts.append(chunk.text)
        told.final = chunk.final
