"""`make bench BENCH=gateway`: what a durable, metered call adds, beside others on one upstream.

The upstream answers at once. Products take turns within each round: the bare upstream, a bare
pass-through, ours with everything on, and LiteLLM's proxy where `ARGS="--litellm VENV"` names an
environment that has it (`pip install 'litellm[proxy]'`).

* `added_ms`: median of a call over the bare upstream's; `calls_per_s` at 32 at a time.
* `cpu_ms_per_call`: CPU of the product's own processes; for ours also with Postgres's.
* `edge_hit_ms`, `edge_refusal_ms`: an equal call that the cache answers, and one that a budget
  refuses, over the bare upstream: with their rows in the ledger and the audit log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from deploy.local.home import Home, Secrets
from deploy.local.ports import free_port
from deploy.local.state import read_state
from store.provision import create_key, create_organisation, create_team
from tests.benchmarks.gateway_upstream import KEY
from tests.benchmarks.stack import own_stack

CASES = (("plain", 1), ("stream", 1), ("plain", 32), ("stream", 32))
CALLS = {1: 200, 32: 1200}
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Product:
    """Something that is asked.

    Attributes:
        pids: Its own processes; `behind` are those it has work done by.
    """

    name: str
    url: str
    key: str
    model: str = "mock"
    pids: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of processes and everything they started."""
    total = 0.0
    for pid in pids:
        try:
            told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(told[11]) + int(told[12])) / _TICK
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        total += cpu_seconds([int(child) for child in children])
    return total


def measure(
    product: Product, case: str, concurrency: int, *, scale: float, same: bool = False
) -> None:
    """Load a product once."""
    command = [sys.executable, "-m", "tests.benchmarks.gateway_load", product.url, product.key]
    command += [product.model, str(concurrency), str(int(CALLS[concurrency] * scale))]
    command += ["--stream"] if case == "stream" else []
    command += ["--same"] if same else []
    before = cpu_seconds(product.pids), cpu_seconds(product.behind)
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    calls = result["calls"] + 32
    result["cpu_ms"] = (cpu_seconds(product.pids) - before[0]) * 1000 / calls
    result["behind_ms"] = (cpu_seconds(product.behind) - before[1]) * 1000 / calls
    product.results.setdefault(f"{case}_c{concurrency}", []).append(result)


def median(product: Product, case: str, what: str) -> float:
    """Median over the rounds."""
    return statistics.median(result[what] for result in product.results[case])


@contextlib.contextmanager
def served(command: list[str], url: str, **environment: str) -> Iterator[int]:
    """Run a server until the block ends; yields its process id."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 400
        while True:
            try:
                urllib.request.urlopen(url, timeout=2).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                assert process.poll() is None, f"{command} ended"
                assert time.monotonic() < until, f"{command} does not answer"
                time.sleep(0.1)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=20)


def uvicorn(app: str, port: int) -> list[str]:
    """The command line of an application of this folder."""
    module = f"tests.benchmarks.gateway_upstream:{app}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
    return [sys.executable, "-m", "uvicorn", module, *options, "--log-level", "error"]


@contextlib.contextmanager
def litellm(environment: Path, upstream: str, folder: Path) -> Iterator[Product]:
    """LiteLLM's proxy: one worker, one key, no database."""
    port = free_port()
    config = folder / "litellm.yaml"
    parameters = {
        "model": "openai/mock",
        "api_base": upstream,
        "api_key": "none",
        "input_cost_per_token": 1e-6,
        "output_cost_per_token": 2e-6,
    }
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "mock", "litellm_params": parameters}],
                "litellm_settings": {"num_retries": 0},
                "general_settings": {"master_key": KEY},
            }
        )
    )
    command = [str(environment / "bin/litellm"), "--config", str(config)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    url = f"http://127.0.0.1:{port}"
    with served(command, f"{url}/health/liveliness", LITELLM_LOG="ERROR") as pid:
        yield Product("litellm", f"{url}/v1", KEY, pids=[pid])


def ours(home: Path) -> Product:
    """Our own product, as the stack runs it."""
    state = read_state(Home(home))
    api_key = Secrets.load(Home(home)).api_key
    assert api_key is not None
    pids = {name: part["pid"] for name, part in state.parts.items()}
    return Product(
        "overline",
        state.urls["api"] + "/v1",
        api_key,
        pids=[pids["api"]],
        behind=[pids["postgres"]],
    )


def refused(home: Path, like: Product) -> Product:
    """The same with a key that may spend nothing."""
    state = read_state(Home(home))
    password = Secrets.load(Home(home)).postgres
    admin = f"postgresql://postgres:{password}@127.0.0.1:{state.ports['postgres']}/overline"
    organisation = create_organisation(admin, "refused")
    team = create_team(admin, organisation, "team")
    key = create_key(admin, organisation, team, "key", cap_usd=Decimal(0))
    return Product("refused", like.url, key.token, pids=like.pids, behind=like.behind)


def report(products: list[Product], edges: dict[str, Product]) -> dict[str, Any]:
    """What was measured, by the names of the docstring."""
    bare = products[0]
    told: dict[str, Any] = {
        "upstream": {},
        "added_ms": {},
        "calls_per_s": {},
        "cpu_ms_per_call": {},
    }
    for case, concurrency in CASES:
        name = f"{case}_c{concurrency}"
        told["upstream"][name] = {
            "p50_ms": median(bare, name, "p50_ms"),
            "per_s": median(bare, name, "per_s"),
        }
    for product in products[1:]:
        own: dict[str, dict[str, float]] = {
            "added_ms": {},
            "calls_per_s": {},
            "cpu_ms_per_call": {},
        }
        for case, concurrency in CASES:
            name = f"{case}_c{concurrency}"
            added = median(product, name, "p50_ms") - median(bare, name, "p50_ms")
            own["added_ms"][name] = round(added, 2)
            own["calls_per_s"][name] = round(median(product, name, "per_s"), 1)
            own["cpu_ms_per_call"][name] = round(median(product, name, "cpu_ms"), 2)
            if product.behind:
                both = median(product, name, "cpu_ms") + median(product, name, "behind_ms")
                own["cpu_ms_per_call"][f"{name}_with_postgres"] = round(both, 2)
        for key, values in own.items():
            told[key][product.name] = values
    for name, product in edges.items():
        told[f"edge_{name}_ms"] = round(
            median(product, "plain_c1", "p50_ms") - median(bare, "plain_c1", "p50_ms"), 2
        )
        told[f"edge_{name}_per_s"] = round(median(product, "plain_c32", "per_s"), 1)
        told[f"edge_{name}_statuses"] = product.results["plain_c32"][-1]["statuses"]
    return told


def main() -> None:
    """Start everything, measure, print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--litellm", type=Path, help="An environment that has litellm[proxy].")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="Of the number of calls.")
    asked = parser.parse_args()
    port, passing = free_port(), free_port()
    upstream = f"http://127.0.0.1:{port}/v1"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="overline-bench-")))
        file = folder / "upstreams.yaml"
        file.write_text(
            json.dumps(
                {
                    "upstreams": [
                        {
                            "name": "mock*",
                            "base_url": upstream,
                            "context_window": 16_384,
                            "max_output_tokens": 4_096,
                            "prices": {"input": 1, "output": 2},
                        }
                    ]
                }
            )
        )
        stack.enter_context(served(uvicorn("upstream", port), upstream + "/models"))
        passed = stack.enter_context(
            served(
                uvicorn("passed", passing), f"http://127.0.0.1:{passing}", BENCH_UPSTREAM=upstream
            )
        )
        products = [
            Product("upstream", upstream, KEY),
            Product("pass_through", f"http://127.0.0.1:{passing}/v1", KEY, pids=[passed]),
        ]
        home = stack.enter_context(
            own_stack(
                OVERLINE_MODELS="scripted",
                OVERLINE_WORKERS="1",
                OVERLINE_UPSTREAMS=str(file),
                OVERLINE_LOG_LEVEL="WARNING",
                OVERLINE_API_PORT="0",
            )
        )
        products.append(ours(home))
        if asked.litellm is not None:
            products.append(stack.enter_context(litellm(asked.litellm, upstream, folder)))
        edges = {"hit": ours(home), "refusal": refused(home, products[2])}
        for number in range(asked.rounds):
            for case, concurrency in CASES:
                order = products if number % 2 == 0 else products[::-1]
                for product in order:
                    measure(product, case, concurrency, scale=asked.scale)
            for concurrency in (1, 32):
                measure(edges["hit"], "plain", concurrency, scale=asked.scale, same=True)
                measure(edges["refusal"], "plain", concurrency, scale=asked.scale)
        print(json.dumps(report(products, edges), indent=2))


if __name__ == "__main__":
    main()
