"""Countries whose phone numbers can be told."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["refuse_regions"]


def refuse_regions(regions: Iterable[str]) -> None:
    """Raise ValueError where one is no country that has phone numbers."""
    from phonenumbers import SUPPORTED_REGIONS  # only where a policy names one

    unknown = [region for region in regions if region not in SUPPORTED_REGIONS]
    if unknown:
        raise ValueError(f"no such region: {', '.join(unknown)}")
