"""What is sealed opens for what it was bound to, with the key it was sealed with."""

from __future__ import annotations

import base64
import os

import pytest
from pydantic import SecretStr

from settings import Settings
from workflows.codec import PayloadRefused
from workflows.sealing import Sealer


def _key(name: str) -> str:
    return f"{name}:{base64.b64encode(os.urandom(32)).decode()}"


def _sealer(*keys: str) -> Sealer:
    return Sealer(Settings(_env_file=None, payload_keys=SecretStr(",".join(keys))))


def test_opens_for_what_it_was_bound_to_and_nothing_else() -> None:
    sealer = _sealer(_key("k1"))
    key_id, sealed = sealer.seal(b"secret", "a", "bc")
    assert key_id == "k1"
    assert b"secret" not in sealed
    assert sealer.open(key_id, sealed, "a", "bc") == b"secret"
    for bound in (("ab", "c"), ("a",), ("a", "bc", "")):
        with pytest.raises(PayloadRefused):
            sealer.open(key_id, sealed, *bound)
    with pytest.raises(PayloadRefused):
        sealer.open(key_id, sealed[:-1] + bytes([sealed[-1] ^ 1]), "a", "bc")
    with pytest.raises(PayloadRefused):
        sealer.open(key_id, b"", "a", "bc")


def test_a_rotated_ring_opens_what_the_old_key_sealed() -> None:
    old, new = _key("k1"), _key("k2")
    key_id, sealed = _sealer(old).seal(b"x", "a")
    assert _sealer(new, old).open(key_id, sealed, "a") == b"x"
    assert _sealer(new, old).seal(b"x", "a")[0] == "k2"
    with pytest.raises(PayloadRefused):
        _sealer(new).open(key_id, sealed, "a")


def test_a_ring_is_asked_for_when_it_is_needed() -> None:
    with pytest.raises(ValueError, match="OVERLINE_PAYLOAD_KEYS"):
        _sealer().seal(b"x", "a")
