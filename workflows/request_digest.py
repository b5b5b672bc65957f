"""What tells the repetition of a request from another one, and says nothing of what was asked.

A digest of the request itself would: beside the redacted text on file, the few digits that were
taken out are found by trying all. So it is filed under a key, and not at all where nobody can ask
again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from workflows.sealing import Sealer

__all__ = ["RequestDigest", "digest_of_request"]


@dataclass(frozen=True, slots=True)
class RequestDigest:
    """The digest of one request.

    Attributes:
        plain: As it was filed before there were keys; never filed.
        filed: As it is filed.
    """

    plain: str
    filed: str

    @classmethod
    def of(cls, sealer: Sealer, plain: str, idempotency_key: str | None) -> RequestDigest:
        """Return it, for a request that can be repeated by its key, or by nothing."""
        return cls(plain, "" if idempotency_key is None else sealer.keyed(plain))


def digest_of_request(said: Any) -> str:
    """Return the plain digest of a request."""
    canonical = json.dumps(said, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
