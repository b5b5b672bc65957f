"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says something about the machine, which is shared, and nothing about us.
settings.register_profile("overline", settings(), deadline=None)
settings.load_profile("overline")
