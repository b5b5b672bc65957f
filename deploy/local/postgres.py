"""A PostgreSQL 18 with pgvector of one's own, for as long as a ``with`` block.

with PostgresServer(folder) as server:
psycopg.connect(server.admin_url)
"""

from __future__ import annotations

import secrets
import subprocess
import time
from pathlib import Path
from types import TracebackType

from deploy.local.endings import cannot_run
from deploy.local.errors import PartFailed
from deploy.local.guardian import Guardian
from deploy.local.ports import free_port
from deploy.local.postgres_folder import INSTEAD, STOP_SIGNAL, PostgresFolder, programs
from deploy.local.processes import end_group, spawn

__all__ = ["PostgresFolder", "PostgresServer", "programs"]


class PostgresServer:
    """A server that lives as long as a ``with`` block, or from ``start`` to ``stop``.

    Attributes:
        where: The data folder and its addresses.
        log: Log file.
    """

    def __init__(
        self, folder: Path, *, port: int | None = None, password: str | None = None
    ) -> None:
        """Take the data folder; without ``port`` a free one is used.

        Args:
            folder: Data folder; made when missing.
            port: Loopback port; None: a free one.
            password: Superuser's password; None: a new one, so only right for a new folder.
        """
        self.where = PostgresFolder(
            folder, port or free_port(), password or secrets.token_urlsafe(24)
        )
        self.log = folder.parent / f"{folder.name}.log"
        self._guardian: Guardian | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def admin_url(self) -> str:
        """Connection URL of the superuser; holds a secret."""
        return self.where.admin_url

    @property
    def pid(self) -> int | None:
        """Process id of the server while it runs."""
        return None if self._process is None else self._process.pid

    def start(self, *, limit_s: float = 30.0) -> PostgresServer:
        """Start the server and wait until it answers.

        Raises:
            CannotRunHere: The wheel's programs do not run on this machine.
            PartFailed: It ended, or did not answer within ``limit_s`` seconds.
        """
        self.where.prepare(self.log)
        self._guardian = Guardian()
        try:
            self._process = spawn(self.where.launch(), self.log)
        except OSError as error:
            self.stop()
            raise cannot_run(INSTEAD, str(error)) from error
        self._guardian.watch(self._process.pid, ask=STOP_SIGNAL)
        deadline = time.monotonic() + limit_s
        while not self.where.is_ready():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > deadline:
                self.stop()
                said = f"ended with {ended}" if ended is not None else "did not answer"
                raise PartFailed("postgres", f"{said} within {limit_s:.0f} s", self.log)
            time.sleep(0.03)
        return self

    def stop(self) -> None:
        """End the server; sessions are closed, data is written. Does nothing when it is ended."""
        process, self._process = self._process, None
        if process is not None:
            end_group(process.pid, first=STOP_SIGNAL, patience_s=20, process=process)
            process.wait()
            if self._guardian is not None:
                self._guardian.release(process.pid)
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            guardian.close()

    def kill(self) -> None:
        """End the server as a crash would, with SIGKILL; ``start`` brings it back."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def __enter__(self) -> PostgresServer:
        """Start."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, whatever happened."""
        self.stop()
