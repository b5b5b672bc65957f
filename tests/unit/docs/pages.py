"""The README and the pages under docs/, read the way a reader would: links, tables, commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        path: Where it is, relative to the repository.
        text: All of it.
    """

    path: Path
    text: str

    @property
    def prose(self) -> str:
        """The text without its code blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self, *kinds: str) -> list[str]:
        """Code blocks of some kinds, or of any."""
        return [body for kind, body in _FENCE.findall(self.text) if not kinds or kind in kinds]

    @property
    def spans(self) -> list[str]:
        """Text set as code within sentences."""
        return _SPAN.findall(self.prose)

    @property
    def links(self) -> list[str]:
        """Targets of links to elsewhere in the repository."""
        found = _LINK.findall(self.prose)
        return [target for target in found if not re.match(r"[a-z]+:", target)]

    @property
    def anchors(self) -> set[str]:
        """Anchors of the headings, as GitHub makes them."""
        return {
            re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
            for heading in _HEADING.findall(self.prose)
        }

    def table(self, first_column: str) -> list[list[str]]:
        """Rows of the table whose first column has that head, as cells without backquotes."""
        rows: list[list[str]] = []
        inside = False
        for line in self.text.splitlines():
            cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|"):
                inside = False
            elif cells[0] == first_column:
                inside = True
            elif inside and not set(line) <= set("|-: "):
                rows.append(cells)
        return rows


@cache
def pages() -> tuple[Page, ...]:
    """Every page there is."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(Page(path.relative_to(ROOT), path.read_text("utf-8")) for path in paths)


def page(name: str) -> Page:
    """One page by its path."""
    return next(each for each in pages() if str(each.path) == name)
