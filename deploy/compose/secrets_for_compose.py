"""Prints a filled-in copy of .env.example: every secret is made anew. Standard library only."""

from __future__ import annotations

import base64
import secrets
import sys
from pathlib import Path

__all__ = ["filled"]


def filled(example: str) -> str:
    """Return the example with a fresh secret for every variable that must have one.

    Args:
        example: Text of `.env.example`.
    """
    made = {
        "POSTGRES_PASSWORD": secrets.token_urlsafe(24),
        "OVERLINE_APP_PASSWORD": secrets.token_urlsafe(24),
        "OVERLINE_READER_PASSWORD": secrets.token_urlsafe(24),
        "OVERLINE_PAYLOAD_KEYS": "k1:" + base64.b64encode(secrets.token_bytes(32)).decode(),
        "OVERLINE_CODEC_TOKEN": secrets.token_urlsafe(24),
    }
    lines = []
    for line in example.splitlines():
        name, sign, value = line.partition("=")
        lines.append(f"{name}={made[name]}" if sign and not value and name in made else line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(filled(Path(__file__).with_name(".env.example").read_text()))
