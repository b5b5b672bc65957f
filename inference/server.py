"""The generating model as Triton's Python backend runs it.

`execute` only hands over: requests run side by side on one event loop in a thread of its own,
where the engine batches them. So Triton's own queue is always empty, and what one request does
holds up no other. Runs in the engine's environment; configured by config.pbtxt alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from inference.contract import GENERATE
from inference.engines.base import Engine, EngineRefusal
from inference.engines.load import load_engine
from inference.generation import Chunk, generate
from inference.meter import Meter, Reading
from inference.prompt import unpack_prompt
from inference.reply import Reply
from inference.vocabulary import load_vocabulary

_CANCEL_POLL_S = 0.02
"""How often running requests are asked whether their caller has left."""


class Server:
    """One loaded model: event loop, engine, meter, cancel watch."""

    def __init__(self, backend: Any, parameters: dict[str, str]) -> None:
        """Loads the engine; returns when it can generate.

        Args:
            backend: The module `triton_python_backend_utils`.
            parameters: String parameters of config.pbtxt.
        """
        self._backend = backend
        folder = Path(parameters["artefacts"])
        self._vocabulary = load_vocabulary(folder)
        self._meter = Meter(Path(parameters["meter_dir"]))
        self._engine: Engine = load_engine(parameters, self._vocabulary)
        self._running: dict[asyncio.Task[None], Reply] = {}
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Event()
        threading.Thread(target=self._loop.run_forever, name="engine", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._engine.start(), self._loop).result()
        threading.Thread(target=self._watch, name="cancel", daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        """Takes requests from Triton; answers come through each request's sender."""
        received = time.perf_counter_ns()
        for request in requests:
            reply = Reply(self._backend, GENERATE, request.get_response_sender())
            inputs = {tensor.name(): tensor for tensor in request.inputs()}
            self._loop.call_soon_threadsafe(
                self._accept, reply, request.request_id(), inputs, received
            )

    def finalize(self) -> None:
        """Stops everything; requests in flight end as cancelled."""
        self._closing.set()
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _shut_down(self) -> None:
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engine.close()
        self._meter.close()

    def _accept(self, reply: Reply, request_id: str, inputs: dict[str, Any], received: int) -> None:
        def read(name: str) -> list[Any] | None:
            tensor = inputs.get(name)
            return None if tensor is None else tensor.as_numpy().ravel().tolist()

        operation = (read("operation") or [b"generate"])[0].decode("utf-8", "replace")
        if operation == "generate":
            task = self._loop.create_task(self._answer(reply, request_id, read, received))
            self._running[task] = reply
            task.add_done_callback(lambda done: self._running.pop(done, None))
        elif operation == "meter":
            wanted = (read("meter_request_id") or [b""])[0].decode("utf-8", "replace")
            reading = self._meter.read(wanted) if wanted else self._meter.totals()
            reply.send(_reading_values(reading), final=True)
        elif operation == "ping":
            reply.send({"token_ids": [], "text": "pong"}, final=True)
        else:
            reply.refuse("bad_request", f"unknown operation {operation!r}")

    async def _answer(self, reply: Reply, request_id: str, read: Any, received: int) -> None:
        try:
            prompt = unpack_prompt(request_id, read)
            chunks = generate(self._engine, self._vocabulary, self._meter, prompt, received)
            async with aclosing(chunks):
                async for chunk in chunks:
                    reply.send(_chunk_values(chunk), final=chunk.end is not None)
        except asyncio.CancelledError:
            # Nobody listens any more, but Triton wants every request closed.
            with contextlib.suppress(Exception):
                reply.send({"finish_reason": "cancelled"}, final=True)
        except EngineRefusal as refusal:
            reply.refuse(refusal.code, str(refusal))
        except UnicodeDecodeError:
            reply.refuse("bad_request", "a text input is not UTF-8")
        except Exception as error:
            # The message may quote the prompt: only its kind goes out.
            reply.refuse("engine_failed", f"the engine broke: {type(error).__name__}")
            self._backend.Logger.log_error(f"engine failure in {request_id}: {error!r}"[:500])

    def _watch(self) -> None:
        while not self._closing.wait(_CANCEL_POLL_S):
            for task, reply in list(self._running.items()):
                # This thread must outlive whatever goes wrong with one request.
                with contextlib.suppress(Exception):
                    if reply.caller_left():
                        self._loop.call_soon_threadsafe(task.cancel)


def _chunk_values(chunk: Chunk) -> dict[str, Any]:
    values: dict[str, Any] = {"token_ids": chunk.token_ids, "text": chunk.text}
    if chunk.end is not None:
        values |= vars(chunk.end)
    return values


def _reading_values(reading: Reading | None) -> dict[str, Any]:
    if reading is None:
        return {"meter_state": "unknown", "meter_requests": 0}
    return {
        "meter_state": reading.state,
        "meter_requests": reading.requests,
        "prompt_tokens": reading.prompt_tokens,
        "cached_tokens": reading.cached_tokens,
        "completion_tokens": reading.completion_tokens,
    }
