"""Why work lies in a task queue: nobody asks for it, nobody may, or others are before it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from api.steering_views import WhyReason
from api.why_known import Known, say, since
from api.workflow_look import Asker, Poller, Version, WorkflowLook

__all__ = ["untaken"]

# A worker's poll lasts a minute at most; one that asked longer ago is gone.
_POLLER_GONE_S = 75.0
# Work that lies in a queue longer than this is not being taken.
_UNTAKEN_S = 3.0


def untaken(
    known: Known,
    look: WorkflowLook,
    queue: str,
    kind: str,
    waiting_since: datetime | None,
    what: str,
) -> Iterator[WhyReason]:
    """Say why something waits in a queue, if it has waited longer than is usual.

    Args:
        known: All that is known.
        look: What Temporal says of the task.
        queue: Where it waits.
        kind: `workflow` or `activity`.
        waiting_since: Since when.
        what: What waits, in words.
    """
    waits = since(known, waiting_since)
    if waits is None or waits < _UNTAKEN_S:
        return
    poller = look.poller(queue, kind)
    version = look.pinned or poller.current
    able = [each for each in poller.askers if version is None or each.version == version]
    seen = min((_seconds_since(known, asker) for asker in able), default=None)
    facts: dict[str, object] = {
        "queue": queue,
        "kind": kind,
        "waiting_s": round(waits),
        "last_poll_s": None if seen is None else round(seen),
    }
    # Whoever asks for work while some lies there is given it.
    asked = seen is not None and seen <= min(_POLLER_GONE_S, max(waits, _UNTAKEN_S))
    if asked or (kind == "activity" and _alive(known, look, able)):
        yield _in_line(poller, what, waits, facts)
    elif version is not None:
        yield _unserved(known, look, version, what, facts)
    else:
        last = "never" if seen is None else f"{seen:.0f} s ago"
        yield say(
            "no_worker",
            f"No worker asks the task queue {queue!r} for {kind} work (last: {last}); {what} "
            f"waits for {waits:.0f} s.",
            "Start a worker: `overline worker`, or look at `overline status` and `overline logs`.",
            **facts,
        )


def _in_line(poller: Poller, what: str, waits: float, facts: dict[str, object]) -> WhyReason:
    """It will be taken: what it waits for meanwhile."""
    line = f"{what} waits for {waits:.0f} s in the task queue {poller.queue!r}"
    among = f"one of {poller.waiting}" if poller.waiting > 1 else "the only one"
    if poller.limit_per_s is not None:
        return say(
            "queue_limited",
            f"{line}, {among}: it is limited to {poller.limit_per_s:g} a second.",
            "Wait, or have the limit raised: `temporal task-queue config set --task-queue "
            f"{poller.queue} --task-queue-type activity --queue-rps-limit ...`.",
            **facts,
            waiting=poller.waiting,
            limit_per_s=poller.limit_per_s,
        )
    if what == "generation.generate":
        return say(
            "waiting_for_slot",
            f"{line}, {among}: the engine's slots are taken. Priority comes first, then teams in "
            "turn, by their tokens.",
            "Wait, or serve the model with more replicas. Tasks with `priority: batch` leave the "
            "way to others.",
            **facts,
            waiting=poller.waiting,
        )
    return say(
        "worker_busy",
        f"{line}: its workers are busy.",
        "Wait, start another worker, or raise OVERLINE_WORKER_CONCURRENCY.",
        **facts,
        waiting=poller.waiting,
    )


def _alive(known: Known, look: WorkflowLook, askers: list[Asker]) -> bool:
    """Tell whether one of some workers lives: with all it can take, it asks for decisions only."""
    deciding = {
        each.identity
        for each in look.poller(look.queue, "workflow").askers
        if _seconds_since(known, each) <= _POLLER_GONE_S
    }
    return any(asker.identity in deciding for asker in askers)


def _seconds_since(known: Known, asker: Asker) -> float:
    return (known.now - asker.last_seen).total_seconds()


def _unserved(
    known: Known, look: WorkflowLook, version: Version, what: str, facts: dict[str, object]
) -> WhyReason:
    build, deployment = version.build, version.deployment
    if look.pinned is None:
        text = f"Build {build!r} of {deployment!r} is current and has no workers; {what} waits."
        advice = (
            f"Start a worker of build {build}, or make another one current: `overline "
            f"worker-version current BUILD --deployment {deployment}`."
        )
    else:
        text = f"It stays with build {build!r} of {deployment!r}, and that version has no workers."
        advice = (
            f"Start a worker of build {build}, or move the task: `overline worker-version move "
            f"BUILD --task {known.task_id} --deployment {deployment}`; `overline replay "
            f"{known.task_id}` with that build's code says beforehand whether it goes on there."
        )
    return say(
        "version_unserved",
        text,
        advice,
        **facts,
        deployment=deployment,
        build=build,
        pinned=look.pinned is not None,
    )
