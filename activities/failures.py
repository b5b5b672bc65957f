"""How an activity's errors reach Temporal: typed, in words, retried only where that can help."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from inference.errors import EngineBusy as Busy
from inference.errors import EngineDenied as Denied
from inference.errors import EngineError
from inference.errors import RequestRefused as EngineRefused
from safety.errors import DetectorFailed
from store.errors import DatabaseUnavailable, Fenced, JournalGap, KeyRestricted, StoreError
from store.pricing import UnknownName, Unpriced
from workflows.errors import (
    ContextTooLong,
    DatabaseDown,
    EngineBusy,
    EngineDenied,
    EngineDown,
    Internal,
    KeyRefused,
    ModelUnpriced,
    NotFound,
    OverlineError,
    PolicyError,
    RequestRefused,
    SafetyUnavailable,
)

__all__ = ["typed_failures"]

P = ParamSpec("P")
R = TypeVar("R")

# An unforeseen exception is most likely a defect: trying it a few times covers the rest.
UNFORESEEN_ATTEMPTS = 5


def typed_failures(run: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Wrap an activity so that every error leaves it as a typed `ApplicationError`."""

    @functools.wraps(run)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await run(*args, **kwargs)
        except ApplicationError:
            raise
        except OverlineError as error:
            raise _failure(error) from error
        except DatabaseUnavailable as error:
            raise _failure(DatabaseDown("Postgres cannot be reached")) from error
        except (Fenced, JournalGap) as error:
            # A worker that hung and woke up late can fence off the attempt that counts. The next
            # one fences it off in turn, and goes on from the journal; if this is the late one,
            # Temporal does not ask for its failure any more.
            raise ApplicationError(
                str(error), type=Internal.type(), category=ApplicationErrorCategory.BENIGN
            ) from error
        except UnknownName as error:
            raise _failure(NotFound(str(error))) from error
        except Unpriced as error:
            raise _failure(ModelUnpriced(str(error))) from error
        except KeyRestricted as error:
            raise _failure(KeyRefused(str(error))) from error
        except DetectorFailed as error:
            raise _failure(SafetyUnavailable(str(error), rule=error.rule)) from error
        except StoreError as error:
            # Settled, not admitted, not found: another try would meet the same.
            raise ApplicationError(str(error), type=Internal.type(), non_retryable=True) from error
        except EngineRefused as error:
            refused = ContextTooLong if error.code == "prompt_too_long" else RequestRefused
            # Its words may repeat what the caller wrote: beside the message, which is logged.
            said = error.told.message if error.told else None
            raise _failure(refused(str(error), said=said or None)) from error
        except Denied as error:
            raise _failure(EngineDenied(str(error))) from error
        except Busy as error:
            after = error.told.retry_after_s if error.told else None
            raise _failure(EngineBusy(str(error)), after) from error
        except EngineError as error:
            raise _failure(EngineDown(str(error))) from error
        except Exception as error:
            # Only the type: the text of an unforeseen exception may hold what a caller wrote.
            raise ApplicationError(
                f"unforeseen {type(error).__name__} in {activity.info().activity_type}",
                type=Internal.type(),
                non_retryable=activity.info().attempt >= UNFORESEEN_ATTEMPTS,
            ) from error

    return wrapped


def _failure(error: OverlineError, after_s: float | None = None) -> ApplicationError:
    return ApplicationError(
        error.message,
        {key: value for key, value in error.facts.items() if value is not None},
        type=error.type(),
        non_retryable=not error.retryable,
        next_retry_delay=timedelta(seconds=after_s) if after_s else None,
        # A refusal is an answer, not an incident: it should not count as one in metrics and logs.
        category=(
            ApplicationErrorCategory.BENIGN
            if isinstance(error, PolicyError)
            else ApplicationErrorCategory.UNSPECIFIED
        ),
    )
