"""Workflow modules import what they may and change nothing: each alone, and all in the sandbox.

Reported of others: a worker that refuses to start, because an import inside the sandbox touched the
environment, or made a class anew that outside of it is another one.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest
from temporalio import workflow
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import workflows
from workflows.registry import PASSED_THROUGH, WORKFLOWS

MODULES = sorted(found.name for found in pkgutil.walk_packages(workflows.__path__, "workflows."))
# What does I/O, or belongs to another layer.
FORBIDDEN = (
    *("activities", "api", "deploy", "inference", "store"),
    *("aiohttp", "fastapi", "httpx2", "mcp", "numpy", "opentelemetry.sdk", "psycopg"),
    *("sqlalchemy", "tritonclient", "uvicorn"),
)
# What a process that runs workflows may have imported besides.
BESIDE = ("mcp", "opentelemetry.sdk", "fastapi", "psycopg", "uvicorn", "numpy")

# In an interpreter of its own. Between two modules ours are forgotten: what one of them imported
# cannot hide what another one needs.
_EACH_ALONE = """
import importlib, os, sys
before, complaints = dict(os.environ), []
for module in {modules!r}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "workflows"]:
        del sys.modules[name]
    importlib.import_module(module)
    complaints += [f"{{module}} imports {{name}}" for name in {forbidden!r} if name in sys.modules]
    if dict(os.environ) != before:
        complaints.append(f"{{module}} changes the environment")
    if complaints:
        break
print(*complaints)
"""


def test_every_module_alone_imports_nothing_that_does_io_and_leaves_the_environment() -> None:
    assert {"workflows.agent_task", "workflows.contracts.chain"} <= set(MODULES)
    code = _EACH_ALONE.format(modules=MODULES, forbidden=FORBIDDEN)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.parametrize("beside", BESIDE)
async def test_every_workflow_starts_in_the_sandbox_whatever_is_imported_beside_it(
    beside: str,
) -> None:
    """Nothing gets into the sandbox from outside but what is meant to."""
    try:
        importlib.import_module(beside)
    except ImportError:
        pytest.skip(f"{beside} is not installed")
    runner = SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(
            *PASSED_THROUGH
        ).with_import_notification_policy(
            workflow.SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
        )
    )
    for each in WORKFLOWS:
        # Raises what a worker would at its start.
        runner.prepare_workflow(workflow._Definition.must_from_class(each))
