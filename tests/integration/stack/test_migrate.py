"""The `migrate` container's program, on a real Postgres."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

from deploy.local.postgres import PostgresServer
from inference.models.artefacts import scripted_spelling, write_artefacts
from inference.models.registry import MODELS


def test_it_makes_roles_schema_catalogue_and_shows_one_key_once() -> None:
    # Not a folder of pytest's: another session of it takes the right to pass through away, which
    # Postgres, run as another user, needs.
    with tempfile.TemporaryDirectory(prefix="overline-") as folder:
        _check(Path(folder))


def _check(folder: Path) -> None:
    write_artefacts(folder / "models" / "scripted", MODELS["scripted"], scripted_spelling())
    with PostgresServer(folder / "pg") as server:
        address = f"127.0.0.1:{server.where.port}/overline"
        admin = server.where.url("postgres", server.where.password, "overline")
        env = {
            "PATH": "/usr/bin:/bin",
            "OVERLINE_HOME": str(folder),
            "OVERLINE_ADMIN_DATABASE_URL": admin,
            "OVERLINE_DATABASE_URL": f"postgresql://overline_app:app%2Fpw@{address}",
            "OVERLINE_READER_DATABASE_URL": f"postgresql://overline_reader:readpw@{address}",
            "OVERLINE_MODELS": "scripted",
            "OVERLINE_TRITON_URLS": "triton:8001",
        }
        first, second = (_migrate(env, folder) for _ in range(2))
        assert first.count("OVERLINE_API_KEY=ol_") == 1
        assert "OVERLINE_API_KEY" not in second
        with psycopg.connect(f"postgresql://overline_reader:readpw@{address}") as session:
            rows = session.execute("select model, engine, urls from deployments").fetchall()
        assert rows == [("scripted", "tensorrt_llm", ["triton-gpu:8001"])]
        psycopg.connect(f"postgresql://overline_app:app%2Fpw@{address}").close()


def _migrate(env: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "deploy.compose.migrate"),
            *("--deploy", "scripted=triton-gpu:8001"),
        ],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
