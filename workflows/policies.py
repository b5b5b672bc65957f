"""Every time limit and retry policy, by kind of activity. Clients below retry nothing.

Errors that another try cannot mend reach Temporal as non-retryable failures
(`activities.failures`), so a policy here only says how patiently the rest is tried again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityCancellationType

__all__ = [
    "ACCOUNT",
    "ADMIT",
    "BATCH_END",
    "BATCH_STEP",
    "GENERATE",
    "GENERATE_WITH_FALLBACK",
    "LINES",
    "LOOKUP",
    "MONEY",
    "REGISTER",
    "RETRIEVAL",
    "SWEEP",
    "TOOL",
    "WEBHOOK",
    "Options",
    "registered_tool",
]


class Options(TypedDict, total=False):
    """Keyword arguments of `workflow.execute_activity`."""

    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy
    cancellation_type: ActivityCancellationType
    task_queue: str
    priority: Priority


# Lookups read only: cheap to repeat. A killed worker is noticed by the start-to-close limit, so
# it is short; an outage of Postgres is waited out for as long as an operator may need.
LOOKUP: Options = {
    "start_to_close_timeout": timedelta(seconds=10),
    "schedule_to_close_timeout": timedelta(minutes=30),
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=200),
        backoff_coefficient=2.0,
        maximum_interval=timedelta(seconds=5),
    ),
}

# Admission waits for limits of rate as long as it takes: the refusal says when it is tried again.
ADMIT: Options = {**LOOKUP, "schedule_to_close_timeout": timedelta(days=7)}

# Retrieval asks an embedding model too.
RETRIEVAL: Options = {**LOOKUP, "start_to_close_timeout": timedelta(seconds=30)}

# Settlement must happen in the end: money that is held stays held until it does. It is not
# cancelled either, because cancelled work is paid for as well.
MONEY: Options = {
    **LOOKUP,
    "schedule_to_close_timeout": timedelta(days=7),
    "cancellation_type": ActivityCancellationType.ABANDON,
}

# A generation heartbeats every half second (see activities.generation); a worker that died is
# noticed after three. The journal makes every retry a continuation. Cancellation is waited for,
# so that what was made until then is in the ledger. All attempts together may take a day, because
# waiting for its turn behind thousands of calls counts.
GENERATE: Options = {
    "start_to_close_timeout": timedelta(minutes=60),
    "schedule_to_close_timeout": timedelta(hours=24),
    "heartbeat_timeout": timedelta(seconds=3),
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=300),
        backoff_coefficient=1.7,
        maximum_interval=timedelta(seconds=5),
    ),
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}

# A slice of a batch: line after line until its seconds are over, and the line it is at then. It
# heartbeats as a generation does. What can be tried again it puts off itself, so only an outage of
# Postgres or a dead worker is retried here, until the batch's window is over (set beside it).
LINES: Options = GENERATE

# Reading or writing the whole file of a batch; heartbeats, too.
BATCH_STEP: Options = {
    **LOOKUP,
    "start_to_close_timeout": timedelta(minutes=15),
    "schedule_to_close_timeout": timedelta(days=7),
    "heartbeat_timeout": timedelta(seconds=10),
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}
BATCH_END: Options = {**BATCH_STEP, "cancellation_type": ActivityCancellationType.ABANDON}

# Counting what a given-up generation made is worth a minute; after that the journal's count does.
ACCOUNT: Options = {
    **LOOKUP,
    "start_to_close_timeout": timedelta(seconds=20),
    "schedule_to_close_timeout": timedelta(minutes=1),
    "cancellation_type": ActivityCancellationType.ABANDON,
}

# With another candidate waiting, a broken engine is given up sooner.
GENERATE_WITH_FALLBACK: Options = {
    **GENERATE,
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=300),
        backoff_coefficient=2.0,
        maximum_interval=timedelta(seconds=5),
        maximum_attempts=6,
    ),
}

TOOL: Options = {
    "start_to_close_timeout": timedelta(seconds=60),
    "schedule_to_close_timeout": timedelta(minutes=30),
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(milliseconds=300),
        backoff_coefficient=2.0,
        maximum_interval=timedelta(seconds=10),
    ),
}

# Housekeeping removes in pieces; each may wait for rows that somebody else has.
SWEEP: Options = {**LOOKUP, "start_to_close_timeout": timedelta(seconds=60)}

# A receiver that is away is tried for about a day, and less and less often. One attempt ends by
# itself; a worker that died is noticed by its silence.
WEBHOOK: Options = {
    "start_to_close_timeout": timedelta(seconds=60),
    "schedule_to_close_timeout": timedelta(hours=25),
    "heartbeat_timeout": timedelta(seconds=3),
    "retry_policy": RetryPolicy(
        initial_interval=timedelta(seconds=1),
        backoff_coefficient=3.0,
        maximum_interval=timedelta(hours=2),
    ),
    "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}


# Somebody waits for it: a source of tools that cannot be read is soon said to be so.
REGISTER: Options = {**RETRIEVAL, "schedule_to_close_timeout": timedelta(minutes=2)}


def registered_tool(timeout_seconds: int) -> Options:
    """Return how a registered tool is called: it ends itself in time, and a dead worker shows.

    How often it is tried after its own failures is decided where they are understood.
    """
    return {
        **TOOL,
        "start_to_close_timeout": timedelta(seconds=timeout_seconds + 30),
        "schedule_to_close_timeout": timedelta(hours=3),
        "heartbeat_timeout": timedelta(seconds=3),
    }
