"""How every process talks to Temporal: one converter for clients, workers and the replayer."""

from __future__ import annotations

import copy
from typing import Any, Self

from temporalio.common import SearchAttributeKey
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    SerializationContext,
    StorageDriverStoreContext,
    WorkflowSerializationContext,
)

from settings import Settings
from workflows.codec import EncryptionCodec, KeyRing
from workflows.large_payloads import Shelf, capped_converter, large_payloads

__all__ = [
    "SEARCH_COST",
    "SEARCH_MODEL",
    "SEARCH_ORGANISATION",
    "SEARCH_STATUS",
    "SEARCH_TEAM",
    "connect_kwargs",
    "data_converter",
]

# Plain text by Temporal's design: ids, names and amounts only, never content.
SEARCH_ORGANISATION = SearchAttributeKey.for_keyword("OverlineOrganisation")
SEARCH_TEAM = SearchAttributeKey.for_keyword("OverlineTeam")
SEARCH_MODEL = SearchAttributeKey.for_keyword("OverlineModel")
SEARCH_STATUS = SearchAttributeKey.for_keyword("OverlineStatus")
SEARCH_COST = SearchAttributeKey.for_int("OverlineCostMicroUSD")


# Bound converters kept; workflows beyond are bound again when they are met again.
MOST_BOUND = 2048


class BoundDataConverter(DataConverter):
    """Binds to a workflow once, not once a payload.

    The SDK asks for a bound converter for every payload and would build a whole new one each
    time, which was a fifth of a worker's time. Only the codec depends on the context here, and on
    nothing of it but namespace and workflow, so bound converters are kept.
    """

    def with_context(self, context: SerializationContext) -> Self:
        """Return the converter of the workflow that `context` speaks of."""
        if not isinstance(context, WorkflowSerializationContext | ActivitySerializationContext):
            return self
        assert isinstance(self.payload_codec, EncryptionCodec)
        bound: dict[tuple[str, str | None], Self] = self.__dict__.setdefault("_bound", {})
        key = (context.namespace, context.workflow_id)
        if key not in bound:
            if len(bound) >= MOST_BOUND:
                bound.clear()
            clone = copy.copy(self)
            clone.__dict__["_bound"] = {}
            clone.__dict__["payload_codec"] = self.payload_codec.with_context(context)
            bound[key] = clone
        return bound[key]

    def _with_store_context(self, store_ctx: StorageDriverStoreContext) -> Self:
        """Return itself: the storage of large payloads reads the workflow off its payload.

        The SDK would build a whole new converter for every activation and activity.
        """
        return self


def data_converter(settings: Settings, shelf: Shelf | None = None) -> DataConverter:
    """Return the converter: pydantic models, encrypted, failures included.

    Args:
        settings: Key ring, namespace and sizes.
        shelf: Where large payloads are kept; none: they stay in the history, and what refers to a
            shelf cannot be read.

    Raises:
        ValueError: The key ring is empty or malformed.
    """
    return BoundDataConverter(
        payload_converter_class=capped_converter(settings.payload_max_bytes),
        payload_codec=EncryptionCodec(
            KeyRing.parse(settings.payload_keys.get_secret_value()), settings.temporal_namespace
        ),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
        external_storage=(
            large_payloads(shelf, from_bytes=settings.payload_inline_bytes)
            if shelf is not None
            else None
        ),
    )


def connect_kwargs(settings: Settings, shelf: Shelf | None = None) -> dict[str, Any]:
    """Return the keyword arguments of `Client.connect` that every process shares.

    The tracing plugin is added by the process that sets tracing up (observability.tracing).
    """
    kwargs: dict[str, Any] = {
        "namespace": settings.temporal_namespace,
        "data_converter": data_converter(settings, shelf),
    }
    if settings.temporal_api_key is not None:
        kwargs["api_key"] = settings.temporal_api_key.get_secret_value()
    if settings.temporal_uses_tls:
        kwargs["tls"] = True
    return kwargs
