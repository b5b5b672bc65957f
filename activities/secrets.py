"""Secrets by name. The operator says, for each, which organisation may send it to which host.

A tenant writes only names. Without the list of hosts, whoever may register a tool could have any
secret sent to a server of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

__all__ = ["SecretMissing", "Secrets"]


class SecretMissing(Exception):
    """There is no such secret for this organisation and host: told apart for nobody."""


class _Secret(BaseModel):
    value: SecretStr
    hosts: tuple[str, ...]
    organisations: tuple[str, ...]


_FILE: TypeAdapter[dict[str, _Secret]] = TypeAdapter(dict[str, _Secret])


class Secrets:
    """Reads the operator's file, anew for every call, so that a rotated secret counts at once."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def headers(
        self, auth: Iterable[dict[str, Any]], *, organisation_id: UUID, destination: str
    ) -> dict[str, str]:
        """Return headers with their secrets.

        Args:
            auth: `SecretHeader`s, as stored.
            organisation_id: Who calls.
            destination: `host:port` the headers go to.

        Raises:
            SecretMissing: One of them may not be sent there, or is not known.
        """
        auth = list(auth)
        known = self._read() if auth else {}
        headers = {}
        for item in auth:
            secret = known.get(item["secret"])
            if (
                secret is None
                or destination not in secret.hosts
                or not {str(organisation_id), "*"} & set(secret.organisations)
            ):
                raise SecretMissing(f"secret {item['secret']!r} is not there for {destination}")
            headers[item["header"]] = item["prefix"] + secret.value.get_secret_value()
        return headers

    def _read(self) -> dict[str, _Secret]:
        if self._file is None:
            return {}
        try:
            return _FILE.validate_json(self._file.read_bytes())
        except (OSError, ValidationError):
            # The text of either could hold a secret.
            raise SecretMissing("the file of secrets cannot be read") from None
