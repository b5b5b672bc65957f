"""What makes a request the repetition of an earlier one."""

from __future__ import annotations

import base64
from typing import Any

from pydantic import SecretStr

from api.on_file import essence_of
from settings import Settings
from workflows.contracts import TaskRequest
from workflows.request_digest import RequestDigest, digest_of_request
from workflows.sealing import Sealer


def digest(**limits: Any) -> str:
    return digest_of_request(essence_of(TaskRequest(input="What?", limits=limits)))


def test_a_repetition_is_known_whatever_the_default_was_when_it_was_first_sent() -> None:
    # As it was filed while `on_budget` was `fail` unless said.
    assert digest(max_steps=3) == digest(max_steps=3, on_budget="fail")
    assert digest(max_steps=3) != digest(max_steps=3, on_budget="wait")
    assert digest(max_steps=3) != digest(max_steps=4)


def sealer(*keys: str) -> Sealer:
    ring = ",".join(f"{name}:{base64.b64encode(name.encode() * 16).decode()}" for name in keys)
    return Sealer(Settings(_env_file=None, payload_keys=SecretStr(ring)))


def test_what_is_filed_of_a_request_is_found_by_no_trying_of_all_texts() -> None:
    plain = digest()
    assert RequestDigest.of(sealer("k1"), plain, None).filed == ""
    filed = RequestDigest.of(sealer("k1"), plain, "again").filed
    assert filed not in ("", plain)
    # The keys may be changed: a new one is put before the old one.
    assert RequestDigest.of(sealer("k2", "k1"), plain, "again").filed == filed
    assert RequestDigest.of(sealer("k2"), plain, "again").filed != filed
    assert RequestDigest.of(sealer("k1"), digest(max_steps=3), "again").filed != filed
