"""What a person sees while the embedded stack starts: one line a part, updated in place."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from deploy.local.report import Event, PlainReport

__all__ = ["StartDisplay", "ready_panel"]

_LOOKS = {
    "waiting": ("·", "dim"),
    "ready": ("✓", "green"),
    "external": ("→", "cyan"),
    "unwell": ("!", "yellow"),
    "failed": ("✗", "red"),
    "stopped": ("·", "dim"),
}


class StartDisplay:
    """Shows events: a live table on a terminal until the stack is up, lines elsewhere and after."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Take whether to say nothing (``--json``: only problems are told, on standard error).

        Args:
            quiet: Whether to say nothing but restarts and failures.
        """
        self._console = Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._plain = PlainReport(sys.stderr)
        self._rows: dict[str, Event] = {}
        self._began: dict[str, float] = {}
        self._spinners: dict[str, Spinner] = {}
        self._live: Live | None = None
        if self._console.is_terminal and not quiet:
            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=8
            )
            self._live.start()

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if self._quiet:
            if event.state in ("restarting", "unwell"):
                self._plain(event)
            return
        if self._live is None:
            self._plain(event)
            return
        if event.part == "stack":
            if event.state == "ready":
                self.close()
            elif event.state is None:
                self._console.print(event.text, style="dim", markup=False)
            return
        known = self._rows.get(event.part)
        state = event.state or (known.state if known else "waiting")
        if known is None or known.state in ("ready", "waiting", "restarting"):
            self._began[event.part] = event.at
        self._rows[event.part] = Event(event.part, state, event.text, at=event.at)

    def close(self) -> None:
        """End the live table; later events are lines."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(Exception):
                live.stop()

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, event in self._rows.items():
            busy = event.state not in _LOOKS
            if busy:
                mark: RenderableType = self._spinners.setdefault(
                    name, Spinner("dots", style="cyan")
                )
                end = time.time()
            else:
                sign, style = _LOOKS[event.state or "waiting"]
                mark, end = Text(sign, style=style), event.at
            passed = f"{max(0.0, end - self._began.get(name, end)):.1f} s"
            words = event.text or (event.state or "")
            table.add_row(
                mark, Text(name, style="bold"), Text(passed, style="dim"), Text(words, style="dim")
            )
        return Group(Text("Starting Overline", style="bold"), table)


def ready_panel(summary: dict[str, object], *, detached: bool) -> Panel:
    """Return what to show once the stack is up: where everything is and how to begin."""
    urls = summary["urls"]
    assert isinstance(urls, dict)
    table = Table.grid(padding=(0, 2))
    table.add_row("API", f"{urls['api']}   (reference: {urls['docs']})")
    table.add_row("Temporal Web UI", str(urls["temporal_ui"]))
    table.add_row("Key", str(summary["api_key"] or "none yet"))
    table.add_row("State folder", str(summary["home"]))
    table.add_row("", "")
    table.add_row("Try", 'overline submit "What is 12*7? Use the calculator."')
    table.add_row("SQL", "overline psql -c 'select * from spend_by_team_month'")
    table.add_row("Stop", "overline down" if detached else "Ctrl-C, or `overline down`")
    return Panel(table, title="Overline is up", border_style="green", expand=False)
