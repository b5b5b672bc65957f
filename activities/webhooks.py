"""Telling somebody of a task's end, or of a budget: one signed POST, and a note of what came of it.

The headers are those of Standard Webhooks. The id is the delivery's, whatever attempt it is: a
worker that dies between the POST and its note says the same again under the same id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
from temporalio import activity
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import (
    ApplicationError,
    ApplicationErrorCategory,
    WorkflowAlreadyStartedError,
)

from activities.dependencies import Dependencies
from activities.egress import AnswerTooLarge, EgressRefused
from activities.failures import typed_failures
from activities.heartbeats import heartbeats
from activities.registered_tools import destination_of
from activities.secrets import SecretMissing, Secrets
from store import webhooks
from store.webhooks import EndedTask, Warned
from workflows import policies
from workflows.client import SEARCH_ORGANISATION, SEARCH_TEAM
from workflows.contracts import (
    INLINE_ANSWER_CHARS,
    DeliverInput,
    DeliverOutcome,
    Tenant,
    webhook_workflow_id,
)

__all__ = ["Webhooks", "announce", "body_of", "signature_headers"]

log = logging.getLogger(__name__)

ANSWER_SECONDS = 15.0
# Nobody reads it; a receiver may say something all the same.
ANSWER_BYTES = 64 * 1024
LONGEST_RETRY_AFTER_S = 3_600


class _Unanswered(Exception):
    """The receiver did not take it this time."""

    def __init__(self, why: str, status: int | None = None, retry_after_s: int | None = None):
        super().__init__(why)
        self.status = status
        self.retry_after_s = retry_after_s


class Webhooks:
    """Makes deliveries."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._secrets = Secrets(deps.settings.tool_secrets_file)

    @activity.defn(name="webhooks.deliver")
    @typed_failures
    async def deliver(self, delivery: DeliverInput) -> DeliverOutcome:
        """Send it once more, unless it has ended.

        Raises:
            ApplicationError: `WebhookUnanswered`: it was not taken, and is sent again.
        """
        async with heartbeats():
            task = await webhooks.begin_attempt(
                self._deps.db, delivery.organisation_id, delivery.delivery_id
            )
            if task is None:
                # An attempt before this one got as far as its note, which stands.
                return await self._end(delivery, "delivered")
            try:
                status = await self._post(delivery, task)
            except EgressRefused as error:
                # It would be refused again; nothing was sent.
                return await self._end(delivery, "failed", error=str(error))
            except (_Unanswered, SecretMissing) as error:
                raise await self._again(delivery, error) from None
            if status == httpx2.codes.GONE:
                return await self._end(
                    delivery, "gone", status=status, error="the receiver wants no more"
                )
            return await self._end(delivery, "delivered", status=status)

    @activity.defn(name="webhooks.give_up")
    @typed_failures
    async def give_up(self, delivery: DeliverInput) -> DeliverOutcome:
        """Note that it was given up, if it has not ended in another way."""
        return await self._end(delivery, "failed")

    async def _post(self, delivery: DeliverInput, task: EndedTask | Warned) -> int:
        """Send it, and return the status of an answer that ends the matter."""
        try:
            destination = destination_of({"url": task.url})
        except httpx2.InvalidURL:
            raise EgressRefused("the address cannot be read") from None
        body = body_of(task, link=f"{self._deps.settings.api_url.rstrip('/')}/v1")
        keys: tuple[bytes, ...] = ()
        if task.secret is not None:
            keys = self._secrets.signing_keys(
                task.secret, organisation_id=delivery.organisation_id, destination=destination
            )
        headers = {
            "content-type": "application/json",
            **signature_headers(str(delivery.delivery_id), datetime.now(UTC), body, keys),
        }
        client = self._deps.egress.client(timeout_s=ANSWER_SECONDS, max_bytes=ANSWER_BYTES)
        try:
            async with (
                client,
                client.stream("POST", task.url, content=body, headers=headers) as (answer),
            ):
                # Its words are a stranger's: only the status counts.
                return _taken(answer)
        except AnswerTooLarge as error:
            raise _Unanswered(str(error)) from None
        except httpx2.TimeoutException:
            raise _Unanswered(f"no answer within {ANSWER_SECONDS:.0f} seconds") from None
        except (httpx2.HTTPError, OSError) as error:
            raise _Unanswered(f"the connection failed ({type(error).__name__})") from None

    async def _end(
        self,
        delivery: DeliverInput,
        state: Any,
        *,
        status: int | None = None,
        error: str | None = None,
    ) -> DeliverOutcome:
        ended: Any = await webhooks.end_delivery(
            self._deps.db,
            delivery.organisation_id,
            delivery.delivery_id,
            state,
            status=status,
            error=error,
        )
        return DeliverOutcome(state=ended)

    async def _again(
        self, delivery: DeliverInput, error: _Unanswered | SecretMissing
    ) -> ApplicationError:
        status = error.status if isinstance(error, _Unanswered) else None
        asked = error.retry_after_s if isinstance(error, _Unanswered) else None
        pause = _pause(activity.info().attempt)
        if asked is not None:
            pause = max(pause, timedelta(seconds=min(asked, LONGEST_RETRY_AFTER_S)))
        await webhooks.note_failure(
            self._deps.db,
            delivery.organisation_id,
            delivery.delivery_id,
            status=status,
            error=str(error),
            next_attempt_in=pause,
        )
        return ApplicationError(
            str(error),
            type="WebhookUnanswered",
            category=ApplicationErrorCategory.BENIGN,
            next_retry_delay=pause,
        )


async def announce(deps: Dependencies, tenant: Tenant, task_id: UUID) -> None:
    """Start the deliveries of a task that this activity has ended.

    What cannot be started now, an API process finds and starts.
    """
    try:
        for delivery_id in await webhooks.of_task_unstarted(
            deps.db, tenant.organisation_id, task_id
        ):
            try:
                await activity.client().start_workflow(
                    "DeliverWebhook",
                    DeliverInput(organisation_id=tenant.organisation_id, delivery_id=delivery_id),
                    id=webhook_workflow_id(delivery_id),
                    task_queue=deps.settings.task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    static_summary="tell of a task's end",
                    search_attributes=TypedSearchAttributes(
                        [
                            SearchAttributePair(SEARCH_ORGANISATION, str(tenant.organisation_id)),
                            SearchAttributePair(SEARCH_TEAM, str(tenant.team_id)),
                        ]
                    ),
                    rpc_timeout=timedelta(seconds=3),
                )
            except WorkflowAlreadyStartedError:
                continue
            await webhooks.mark_started(deps.db, tenant.organisation_id, delivery_id)
    except Exception as error:
        log.warning(
            "a webhook was not started yet: %s",
            type(error).__name__,
            extra={"task_id": str(task_id)},
        )


def body_of(task: EndedTask | Warned, *, link: str) -> bytes:
    """Return what is said, in the words of `GET /v1/tasks/{task_id}`: the same for every attempt.

    Args:
        task: The task that ended, or what else is told.
        link: Where things are read.
    """
    if isinstance(task, Warned):
        about = {**task.said, "link": f"{link}/budgets/{task.said['budget_id']}"}
        return _said(task.event, task.filed_at, about)
    short = task.answer is None or len(task.answer) <= INLINE_ANSWER_CHARS
    data: dict[str, Any] = {
        "task_id": str(task.task_id),
        "status": task.status,
        "steps": task.steps,
        "created_at": task.created_at.isoformat(),
        "finished_at": task.finished_at.isoformat(),
        "prompt_tokens": task.prompt_tokens,
        "cached_tokens": task.cached_tokens,
        "completion_tokens": task.completion_tokens,
        "cost_usd": f"{task.billed_usd:f}",
        "waste_usd": f"{task.waste_usd:f}",
        "saved_usd": f"{task.saved_usd:f}",
        "error": task.error,
        "answer": task.answer if short else None,
        "answer_chars": len(task.answer) if task.answer is not None else None,
        "user": task.user_id,
        "tags": task.tags,
        "link": f"{link}/tasks/{task.task_id}",
    }
    return _said(task.event, task.finished_at, data)


def _said(event: str, at: datetime, data: dict[str, Any]) -> bytes:
    said = {"type": event, "timestamp": at.isoformat(), "data": data}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def signature_headers(
    message_id: str, at: datetime, body: bytes, keys: Iterable[bytes]
) -> dict[str, str]:
    """Return the headers of Standard Webhooks: id, time, and one signature a key."""
    second = str(int(at.timestamp()))
    signed = b".".join((message_id.encode(), second.encode(), body))
    signatures = [
        "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys
    ]
    headers = {"webhook-id": message_id, "webhook-timestamp": second}
    return headers | ({"webhook-signature": " ".join(signatures)} if signatures else {})


def _taken(answer: httpx2.Response) -> int:
    status = int(answer.status_code)
    if 200 <= status < 300 or status == httpx2.codes.GONE:
        return status
    if 300 <= status < 400:
        raise _Unanswered(f"it answered with a redirect ({status}), and none is followed", status)
    raise _Unanswered(f"it answered {status}", status, _retry_after(answer))


def _retry_after(answer: httpx2.Response) -> int | None:
    said = answer.headers.get("retry-after", "")
    return int(said) if said.isdecimal() and len(said) < 9 else None


def _pause(attempt: int) -> timedelta:
    """As the policy would pause; said here so that the row can tell it."""
    policy = policies.WEBHOOK["retry_policy"]
    longest = policy.maximum_interval or timedelta(hours=2)
    # Beyond this power the longest pause counts in any case.
    growth = policy.backoff_coefficient ** min(attempt - 1, 20)
    return min(policy.initial_interval * growth, longest)
