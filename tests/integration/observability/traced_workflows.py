"""Workflows of the tracing tests: a module of their own, as the sandbox imports it again."""

from datetime import timedelta

from opentelemetry.trace import get_tracer
from temporalio import workflow
from temporalio.common import RetryPolicy

LIMIT = timedelta(seconds=30)
RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=20), maximum_attempts=3)


@workflow.defn
class Traced:
    """Two activities under a span of its own; the first attempt of each fails."""

    @workflow.run
    async def run(self, name: str) -> list[str]:
        with get_tracer("traced").start_as_current_span("outer"):
            first = await workflow.execute_activity(
                "call_engine", f"{name}:1", start_to_close_timeout=LIMIT, retry_policy=RETRY
            )
            second = await workflow.execute_activity(
                "call_engine", f"{name}:2", start_to_close_timeout=LIMIT, retry_policy=RETRY
            )
        return [first, second]


@workflow.defn
class Waiting:
    """Waits inside a span until it is told to go on."""

    def __init__(self) -> None:
        self._go = False

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.run
    async def run(self, name: str) -> str:
        with get_tracer("traced").start_as_current_span("outer"):
            done = await workflow.execute_activity(
                "call_engine", name, start_to_close_timeout=LIMIT, retry_policy=RETRY
            )
            await workflow.wait_condition(lambda: self._go)
        return str(done)
