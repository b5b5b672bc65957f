"""The state folder of the embedded stack: where things lie, its secrets, its lock.

Everything of one stack is under one folder (``OVERLINE_HOME``); two folders are two stacks.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from deploy.local.errors import AlreadyRunning, StackError
from deploy.local.processes import Identity, mark_of

__all__ = ["Home", "Secrets", "StackLock", "write_atomically"]


@dataclass(frozen=True)
class Home:
    """The state folder's layout.

    Attributes:
        folder: The state folder itself.
    """

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Home:
        """Make the folder when it is new; only its owner may read it."""
        folder = folder.expanduser().absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            home = cls(folder)
            home.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StackError(
                f"The state folder {folder} cannot be made ({error.strerror}). "
                "Choose another with OVERLINE_HOME."
            ) from error
        return home

    @property
    def postgres(self) -> Path:
        """Data folder of Postgres."""
        return self.folder / "pg"

    @property
    def temporal(self) -> Path:
        """Temporal's durable SQLite file."""
        return self.folder / "temporal.db"

    @property
    def logs(self) -> Path:
        """Folder of the logs, one file a part."""
        return self.folder / "logs"

    @property
    def state(self) -> Path:
        """What runs: process ids, ports, addresses, versions (``stack.json``)."""
        return self.folder / "stack.json"

    @property
    def settings(self) -> Path:
        """Settings for every process of this stack, secrets included (``overline.env``)."""
        return self.folder / "overline.env"

    def log(self, part: str) -> Path:
        """Log file of a part."""
        return self.logs / f"{part}.log"


@dataclass
class Secrets:
    """Secrets of one state folder, made once.

    The superuser's and the reader's passwords stay in ``secrets.json``: the API and the workers
    read ``overline.env`` and have no use for them.
    """

    postgres: str
    app: str
    reader: str
    payload_keys: str
    codec_token: str
    api_key: str | None = None

    @classmethod
    def load(cls, home: Home) -> Secrets:
        """Read the folder's secrets, or make and keep new ones."""
        path = home.folder / "secrets.json"
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            pass
        except (ValueError, TypeError) as error:
            raise StackError(
                f"{path} is damaged ({type(error).__name__}). Restore it from a backup: without "
                "it neither the database nor the histories in this folder can be read."
            ) from error
        if (home.postgres / "PG_VERSION").exists():
            raise StackError(
                f"{home.folder} holds a database but {path.name}, which opens it, is gone. "
                "Restore that file, or choose another state folder with OVERLINE_HOME."
            )
        made = cls(
            postgres=secrets.token_urlsafe(24),
            app=secrets.token_urlsafe(24),
            reader=secrets.token_urlsafe(24),
            payload_keys="k1:" + base64.b64encode(secrets.token_bytes(32)).decode(),
            codec_token=secrets.token_urlsafe(24),
        )
        made.save(home)
        return made

    def save(self, home: Home) -> None:
        """Write the secrets, readable by their owner only."""
        write_atomically(home.folder / "secrets.json", json.dumps(asdict(self), indent=1) + "\n")


class StackLock:
    """Held by the one supervisor of a state folder; the system frees it however that one ends."""

    def __init__(self, home: Home) -> None:
        """Name the lock file; nothing is taken yet."""
        self._path = home.folder / "lock"
        self._file: int | None = None

    def take(self) -> None:
        """Take the lock.

        Raises:
            AlreadyRunning: Another process holds it.
        """
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # More than one try: who merely asks whether it is held, holds it for a moment.
        for remaining in range(5, -1, -1):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if remaining:
                    time.sleep(0.05)
                    continue
                os.close(file)
                self._refuse(error)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()} {mark_of(os.getpid())}\n".encode(), 0)
        self._file = file

    def _refuse(self, error: OSError | None) -> NoReturn:
        holder = self.holder()
        who = f" (process {holder.pid})" if holder else ""
        raise AlreadyRunning(
            f"A stack already runs in {self._path.parent}{who}. See `overline status`; stop "
            "it with `overline down`, or start another with OVERLINE_HOME set to a different "
            "folder."
        ) from error

    def check(self) -> None:
        """Refuse as `take` would, without taking.

        Raises:
            AlreadyRunning: Another process holds it.
        """
        if self.is_held():
            self._refuse(None)

    def free(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def is_held(self) -> bool:
        """Whether some process holds the lock now."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def holder(self) -> Identity | None:
        """Who holds the lock, when that can be told."""
        try:
            words = self._path.read_text().split()
            return Identity(int(words[0]), words[1])
        except (OSError, ValueError, IndexError):
            return None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step, mode 0600: a reader sees the old or the new, never half."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
