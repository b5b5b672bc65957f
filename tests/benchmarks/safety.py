"""What screening costs: milliseconds a kilobyte by kind of rule, whole and as a stream.

Prose with now and then something to find, on one core; the processor's time, not the clock's.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from safety.detectors import detector
from safety.policy import Policy
from safety.redactions import Redactions
from safety.screen import Screen

_PROSE = (
    "The valley opens to the south, where the river slows down and the road follows it for twelve "
    "miles. Nobody lives there in winter; in summer the huts are full, and one may write to "
    "huts@example.org or call (415) 555-2671 for a bed. The oldest of them is from 1893 and has "
    "been rebuilt twice, the last time at a cost of 41,300 dollars. "
)
_KINDS: dict[str, dict[str, Any]] = {
    "deny_list_10_words": {"kind": "deny_list", "words": [f"codename{n}" for n in range(10)]},
    "deny_list_2000_words": {"kind": "deny_list", "words": [f"codename{n}" for n in range(2000)]},
    "deny_list_10_patterns": {
        "kind": "deny_list",
        "patterns": [rf"\bproject-{letter}\d+\b" for letter in "abcdefghij"],
    },
    "secrets": {"kind": "secrets"},
    "pii": {"kind": "pii"},
    "prompt_injection": {"kind": "prompt_injection"},
}
_TOKEN = 4


def main() -> None:
    """Measure, and print one JSON object."""
    kinds: dict[str, Any] = {}
    for name, rule in _KINDS.items():
        before = _memory()
        load = _seconds(partial(_screen([rule]).check, ["x"], "input"))
        kinds[name] = {
            "load_ms": round(load * 1000, 1),
            "load_mb": round(_memory() - before, 1),
            **_measured([rule]),
        }
    kinds["all"] = _measured(list(_KINDS.values()))
    detector.cache_clear()
    sys.stdout.write(json.dumps({"bench": "safety", "kinds": kinds}) + "\n")


def _measured(rules: list[dict[str, Any]]) -> dict[str, float]:
    small = (_PROSE * 4)[:1000]
    large = (_PROSE * 400)[:100_000]
    answer = (_PROSE * 12)[:4000]
    screen = _screen(rules)
    screen.check([small], "input")

    def streamed() -> None:
        stream = screen.output()
        for at in range(0, len(answer), _TOKEN):
            stream.feed(answer[at : at + _TOKEN])
        stream.finish()

    return {
        "ms_per_kb": round(_best(lambda: screen.check([small], "input"), 100) * 1000, 4),
        "ms_per_kb_of_100": round(_best(lambda: screen.check([large], "input"), 3) * 10, 4),
        "stream_ms_per_kb": round(_best(streamed, 5) * 1000 / 4, 4),
        "stream_us_per_token": round(_best(streamed, 5) * 1e6 / (len(answer) / _TOKEN), 2),
    }


def _screen(rules: list[dict[str, Any]]) -> Screen:
    named = [{"id": f"rule{n}", "action": "redact", **rule} for n, rule in enumerate(rules)]
    return Screen(Policy.of({"rules": named}), Redactions())


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _best(work: Callable[[], object], times: int) -> float:
    """Return the seconds of one run, of the quickest of three rows: others use the machine too."""
    rows = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(times):
            work()
        rows.append((time.process_time() - start) / times)
    return min(rows)


def _memory() -> float:
    """Return the most memory this process has held, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
