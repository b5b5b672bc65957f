"""Secrets by name. The operator says, for each, which organisation may send it to which host.

A tenant writes only names. Without the list of hosts, whoever may register a tool could have any
secret sent to a server of their own.
"""

from __future__ import annotations

import base64
import binascii
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
    previous: tuple[SecretStr, ...] = ()
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
        return {
            item["header"]: item["prefix"]
            + _allowed(known, item["secret"], organisation_id, destination).value.get_secret_value()
            for item in auth
        }

    def signing_keys(
        self, name: str, *, organisation_id: UUID, destination: str
    ) -> tuple[bytes, ...]:
        """Return the keys that a message is signed with, the newest one first.

        Those before it stay until every receiver knows the new one.

        Args:
            name: Name of the secret; `whsec_` before a value says that it is base64.
            organisation_id: Who signs.
            destination: `host:port` the message goes to.

        Raises:
            SecretMissing: It may not be used for that, or is not known.
        """
        secret = _allowed(self._read(), name, organisation_id, destination)
        return tuple(
            _key(value.get_secret_value(), name) for value in (secret.value, *secret.previous)
        )

    def _read(self) -> dict[str, _Secret]:
        if self._file is None:
            return {}
        try:
            return _FILE.validate_json(self._file.read_bytes())
        except (OSError, ValidationError):
            # The text of either could hold a secret.
            raise SecretMissing("the file of secrets cannot be read") from None


def _allowed(
    known: dict[str, _Secret], name: str, organisation_id: UUID, destination: str
) -> _Secret:
    secret = known.get(name)
    if (
        secret is None
        or destination not in secret.hosts
        or not {str(organisation_id), "*"} & set(secret.organisations)
    ):
        raise SecretMissing(f"secret {name!r} is not there for {destination}")
    return secret


def _key(value: str, name: str) -> bytes:
    encoded = value.removeprefix("whsec_")
    if encoded == value:
        return value.encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise SecretMissing(f"secret {name!r} is not base64 after `whsec_`") from None
