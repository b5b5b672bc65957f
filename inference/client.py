"""The harness's way to a Triton replica: gRPC ModelStreamInfer with Triton's own protobufs.

One stream per request on one shared channel: cancelling a call then ends exactly one request,
metadata (the trace) belongs to one request, and HTTP/2 multiplexes anyway. tritonclient's own
streaming call is not used: it cannot ask for an empty final response, hides the ids of failed
requests, and turns errors of the request iterator into cancellations.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inference.contract import EMBED, GENERATE
from inference.errors import EngineError, EngineUnavailable
from inference.messages import GenerationChunk, GenerationRequest, MeterReading
from inference.prompt import Prompt, pack_prompt
from inference.wire import (
    CHANNEL_OPTIONS,
    build_request,
    error_from_message,
    error_from_status,
    is_final,
    read_chunk,
    read_meter,
    read_outputs,
)

_PROBE_S = 2.0
"""Seconds of silence after which the model's process is asked for a sign of life."""
_PROBE_LIMIT_S = 5.0
_PROBES_UNANSWERED = 2
"""Pings without an answer that make a process count as frozen; one may be a busy machine."""


class TritonClient:
    """One replica. Never retries: retry policies live with the workflows.

    Attributes:
        url: `host:port` of the replica's gRPC listener.
    """

    def __init__(self, url: str) -> None:
        """Remembers the address; the connection is made by the first call."""
        self.url = url
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    async def __aenter__(self) -> Self:
        """Returns the client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the connection."""
        await self.close()

    async def close(self) -> None:
        """Closes the connection; running streams end."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close(None)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationChunk, None]:
        """Runs one attempt and yields its chunks; the last one has `final`.

        Closing the generator, or cancelling the task that reads it, cancels the request and
        frees its slot in the engine.

        Raises:
            RequestRefused: The request is at fault.
            EngineUnavailable: The replica or the way to it is gone; what was yielded stands.
            EngineFailed: The engine broke on this request.
        """
        prompt = Prompt(
            request_id=request.request_id,
            input_ids=request.input_ids,
            generated_ids=request.generated_ids,
            sampling=request.sampling,
            json_schema=request.json_schema,
            grammar=request.grammar,
            lora_name=request.lora_name,
        )
        message = build_request(request.triton_model, request.request_id, pack_prompt(prompt))
        responses = self._stream(
            message,
            deadline_s=request.deadline_s,
            idle_s=request.idle_s,
            metadata=tuple(request.metadata.items()),
            probed=request.triton_model,
        )
        try:
            async for response in responses:
                chunk = read_chunk(response)
                if chunk.token_ids or chunk.text or chunk.final:
                    yield chunk
                if chunk.final is not None:
                    return
        finally:
            await responses.aclose()
        raise EngineUnavailable("the stream ended without a final chunk", "incomplete")

    async def meter(self, triton_model: str, request_id: str) -> MeterReading | None:
        """The engine's durable count for one attempt; None when it never saw it."""
        return await self._meter(triton_model, [request_id])

    async def meter_totals(self, triton_model: str) -> MeterReading:
        """The engine's durable count of everything this model ever did on this replica."""
        totals = await self._meter(triton_model, [""])
        assert totals is not None
        return totals

    async def ping(self, triton_model: str, limit_s: float = 5.0) -> None:
        """Asks the model process itself for a sign of life.

        Triton's own readiness stays green when the process behind a model dies.

        Raises:
            EngineError: It gave none within `limit_s` seconds.
        """
        tensors = [(GENERATE.input("operation"), ["ping"])]
        await self._ask(build_request(triton_model, _fresh_id(), tensors), limit_s)

    async def embed(
        self,
        model: str,
        texts: Sequence[str],
        *,
        limit_s: float = 60.0,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> list[list[float]]:
        """One unit-length vector per text, in order.

        Args:
            model: Name of the embedding model under Triton.
            texts: Texts; what exceeds the model's window is cut off.
            limit_s: Seconds the call may take.
            metadata: gRPC metadata, such as traceparent.
        """
        if not texts:
            return []
        tensors = [(EMBED.input("texts"), list(texts))]
        message = build_request(model, _fresh_id(), tensors, stream=False)
        try:
            response = await self._connected().ModelInfer(
                message, timeout=limit_s, metadata=tuple(metadata)
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error) from error
        flat = read_outputs(response, EMBED)["embeddings"]
        width = len(flat) // len(texts)
        return [flat[n : n + width] for n in range(0, len(flat), width)]

    async def server_ready(self, limit_s: float = 5.0) -> bool:
        """What Triton itself says; see `ping` for what it cannot know."""
        try:
            answer = await self._connected().ServerReady(
                service_pb2.ServerReadyRequest(), timeout=limit_s
            )
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.ready)

    async def _meter(self, triton_model: str, wanted: list[str]) -> MeterReading | None:
        tensors = [
            (GENERATE.input("operation"), ["meter"]),
            (GENERATE.input("meter_request_id"), wanted),
        ]
        message = build_request(triton_model, _fresh_id(), tensors)
        return read_meter(await self._ask(message, 10.0))

    async def _ask(self, message: Any, limit_s: float) -> Any:
        """The one response of a request that has one."""
        responses = self._stream(message, deadline_s=limit_s, idle_s=limit_s, metadata=())
        try:
            async for response in responses:
                return response
        finally:
            await responses.aclose()
        raise EngineUnavailable("the stream ended without an answer", "incomplete")

    async def _stream(
        self,
        message: Any,
        *,
        deadline_s: float,
        idle_s: float,
        metadata: Sequence[tuple[str, str]],
        probed: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The responses of one request, until its end in whatever form it comes."""
        call = self._connected().ModelStreamInfer(timeout=deadline_s, metadata=metadata)
        try:
            async with asyncio.timeout(idle_s):
                await call.write(message)
                await call.done_writing()
            while True:
                answer = await self._next(call, idle_s, probed)
                if not isinstance(answer, service_pb2.ModelStreamInferResponse):
                    return  # grpc.aio's mark for the end of the stream
                if answer.error_message:
                    raise error_from_message(answer.error_message)
                yield answer.infer_response
                if is_final(answer.infer_response):
                    return
        except TimeoutError as error:
            raise EngineUnavailable(
                f"{self.url} said nothing for {idle_s:g} s", "idle_timeout"
            ) from error
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error) from error
        except asyncio.CancelledError:
            # grpc.aio says "cancelled" for a call that the other side or a closed channel
            # ended; our own task being cancelled must stay a cancellation.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise EngineUnavailable(f"{self.url} ended the call", "connection_lost") from None
        except grpc.aio.UsageError as error:
            raise EngineUnavailable(str(error), "connection_lost") from error
        finally:
            call.cancel()

    async def _next(self, call: Any, idle_s: float, probed: str | None) -> Any:
        """The call's next message.

        A silent stream is all one sees of a model process that died, and a model that reads a
        long prompt is silent as well: only asking the process tells them apart soon.

        Raises:
            TimeoutError: There was none for `idle_s` seconds.
            EngineUnavailable: The model process behind the stream is dead or frozen.
        """
        reading = asyncio.ensure_future(call.read())
        clock = asyncio.get_running_loop().time
        until = clock() + idle_s
        unanswered = 0
        try:
            while True:
                await asyncio.wait({reading}, timeout=max(0.0, min(_PROBE_S, until - clock())))
                if reading.done():
                    return reading.result()
                if clock() >= until:
                    raise TimeoutError
                if probed is not None:
                    unanswered = await self._probe(probed, unanswered)
        finally:
            reading.cancel()

    async def _probe(self, triton_model: str, unanswered: int) -> int:
        """Pings a model whose stream is silent; returns how many pings in a row got no answer."""
        try:
            await self.ping(triton_model, _PROBE_LIMIT_S)
        except EngineUnavailable as error:
            silent = error.code in ("deadline", "idle_timeout")
            if silent and unanswered + 1 < _PROBES_UNANSWERED:
                return unanswered + 1
            raise EngineUnavailable(
                f"the process of model {triton_model!r} does not answer: {error}", "unhealthy"
            ) from error
        return 0

    def _connected(self) -> Any:
        if self._stub is None:
            self._channel = grpc.aio.insecure_channel(self.url, options=CHANNEL_OPTIONS)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub


def _fresh_id() -> str:
    return uuid.uuid4().hex


__all__ = ["EngineError", "TritonClient"]
