"""Which version of the code a worker is, for Temporal's worker versioning; off unless named.

Off: any worker takes any task, and what it does not replay it fails on. On: a task stays with the
version it began on (pinned), and new ones begin on the version that was made current.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from settings import Settings
from workflows.ingest import IngestDocument
from workflows.registry import WORKFLOWS
from workflows.session import Session
from workflows.versioned import UpgradingIngestDocument, UpgradingSession

__all__ = ["build_id", "deployment_config", "workflows_of"]


def build_id(settings: Settings) -> str | None:
    """Return what a worker calls its code while versioning is off; None when it is on.

    Named, because the library's default reads the code of every module that is loaded, which takes
    longer than all else that a worker does before it is ready.
    """
    return None if settings.worker_deployment else settings.build_id or version("overline")


def deployment_config(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return what every worker of this process is told; None when versioning is off.

    Raises:
        ValueError: A deployment is named and no build, or one with a name Temporal cannot take.
    """
    name, build = settings.worker_deployment, settings.build_id
    if not name:
        return None
    if not build:
        raise ValueError(
            "OVERLINE_WORKER_DEPLOYMENT is set and OVERLINE_BUILD_ID is not: name the build, for "
            "example by the commit (`git rev-parse --short HEAD`)"
        )
    if "." in name:
        # Temporal writes a version as deployment and build with a dot between.
        raise ValueError("OVERLINE_WORKER_DEPLOYMENT must not hold a dot")
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=name, build_id=build),
        use_worker_versioning=True,
        # A workflow that may change versions while it runs says so in its definition.
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def workflows_of(settings: Settings) -> Sequence[type]:
    """Return the workflows a worker runs; with versioning, some may change builds midway."""
    if not settings.worker_deployment:
        return WORKFLOWS
    upgrading: dict[type, type] = {
        IngestDocument: UpgradingIngestDocument,
        Session: UpgradingSession,
    }
    return [upgrading.get(each, each) for each in WORKFLOWS]
