"""What can go wrong in the store, in words the callers can act on.

Errors carry ids and reasons, never SQL, parameters, prompts or secrets: they end up in logs and in
workflow histories.
"""

from __future__ import annotations

import psycopg
from psycopg import errors as pg


class StoreError(Exception):
    """Base of everything the store raises on purpose."""


class DatabaseUnavailable(StoreError):
    """Postgres cannot be reached, or the connection was lost before the answer arrived.

    The statement may or may not have been committed: every write of the store is idempotent, so
    callers simply run it again. Nothing is retried in here.
    """


class DatabaseBusy(DatabaseUnavailable):
    """Postgres answered, but not in time (lock or statement timeout, deadlock victim)."""


class TenantUnbound(StoreError):
    """A tenant table was touched in a transaction that is bound to no organisation."""


class NotAdmitted(StoreError):
    """The model call has no hold: it was never admitted, so nothing may be spent on it."""


class AlreadySettled(StoreError):
    """The model call was settled: no further attempt may begin."""


class Fenced(StoreError):
    """A newer attempt has taken over, or the call is over: stop."""


class NotFound(StoreError):
    """The row does not exist, or belongs to another organisation (the two are not told apart)."""


class JournalGap(StoreError):
    """A chunk was offered out of order: its sequence number is ahead of the journal."""


class KeyRestricted(StoreError):
    """The key may not use the model, route or tool that is asked for; the message may be told."""


class PolicyChanged(StoreError):
    """Another safety policy holds than the one by which the texts were screened: screen again."""


class UnknownTimeZone(StoreError):
    """Postgres does not know the time zone."""


class TooManyBudgets(StoreError):
    """The organisation has as many budgets by rule as it may have."""


class NameTaken(StoreError):
    """Another one of the organisation's has this name."""


# SQLSTATEs raised by our own PL/pgSQL functions (class OV is unused by PostgreSQL).
_OWN: dict[str, type[StoreError]] = {
    "OV001": NotAdmitted,
    "OV002": AlreadySettled,
    "OV003": NotFound,
    "OV004": JournalGap,
    "OV010": KeyRestricted,
    "OV011": PolicyChanged,
    "OV012": UnknownTimeZone,
    "OV013": TooManyBudgets,
}
_BUSY = (pg.LockNotAvailable, pg.QueryCanceled, pg.DeadlockDetected, pg.SerializationFailure)
_GONE = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.TooManyConnections,
    pg.IdleInTransactionSessionTimeout,
    pg.ConnectionException,
)


def translate(error: psycopg.Error) -> Exception:
    """Maps a driver error to a store error, or returns it unchanged when it is a programming error.

    Args:
        error: what psycopg raised.

    Returns:
        The exception to raise in its place.
    """
    state = error.sqlstate
    if state in _OWN:
        return _OWN[state](error.diag.message_primary or state)
    if isinstance(error, _BUSY):
        return DatabaseBusy(f"the database did not answer in time ({type(error).__name__})")
    if isinstance(error, _GONE) or (isinstance(error, psycopg.OperationalError) and state is None):
        # No SQLSTATE means that libpq itself gave up: refused, reset or closed connections.
        return DatabaseUnavailable(f"the database cannot be reached ({type(error).__name__})")
    if _is_unbound(error):
        return TenantUnbound("no organisation is bound to this transaction")
    return error


def _is_unbound(error: psycopg.Error) -> bool:
    """True when the row-level policy failed because the tenant setting is missing or empty."""
    message = error.diag.message_primary or ""
    if isinstance(error, pg.UndefinedObject):
        return "overline.organisation_id" in message
    return isinstance(error, pg.InvalidTextRepresentation) and message.endswith('uuid: ""')
