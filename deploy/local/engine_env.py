"""The Python environment the models under Triton run in, apart from the harness's own.

Triton's wheel wants an old NumPy, and llama.cpp and the models weigh hundreds of megabytes; the
API and the workers need none of it. On a real Triton machine the two are apart as well.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deploy.local.errors import CannotRunHere, StackError

__all__ = ["ensure_engine_env", "is_current", "site_packages"]

REQUIREMENTS = Path(__file__).with_name("engine-requirements.txt")

# Triton starts a stub program built for one Python version; these are the ones we resolve for.
SUPPORTED = ("3.11", "3.12")

_STAMP = "overline-engine"


def ensure_engine_env(path: Path, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Create or refresh the environment, if it is not as the requirements say.

    Args:
        path: Folder of the environment.
        progress: Takes lines for people.

    Returns:
        The environment's Python.

    Raises:
        CannotRunHere: This machine has no Python 3.11 or 3.12, or another kind of processor.
        StackError: The installation failed.
    """
    python = path / "bin" / "python"
    if is_current(path):
        return python
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise _cannot_run(f"its wheels are for Linux on x86-64, this is {platform.platform()}")
    interpreter = _interpreter()
    started = time.monotonic()
    progress(f"engine: making {path} with Python {interpreter[1]}")
    (path / _STAMP).unlink(missing_ok=True)
    uv = _uv()
    _call([uv, "venv", "--quiet", "--clear", "--python", interpreter[0], str(path)])
    progress("engine: installing Triton, llama.cpp and the models, some 600 MB")
    sync = [uv, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode"]
    _call([*sync, "--python", str(python), str(REQUIREMENTS)])
    (path / _STAMP).write_text(_fingerprint())
    progress(f"engine: installed in {time.monotonic() - started:.0f} s")
    return python


def is_current(path: Path) -> bool:
    """Whether the environment is complete and made from today's requirements."""
    try:
        return (path / _STAMP).read_text() == _fingerprint() and (path / "bin/python").exists()
    except OSError:
        return False


def site_packages(path: Path) -> Path:
    """The environment's site-packages.

    Raises:
        StackError: The environment does not exist.
    """
    found = sorted(path.glob("lib/python3.*/site-packages"))
    if not found:
        raise StackError(
            f"The engine environment {path} does not exist. `make engine` installs it; "
            "OVERLINE_ENGINE_ENV points at another one."
        )
    return found[0]


def _fingerprint() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest() + "\n"


def _interpreter() -> tuple[str, str]:
    """Program and version of a Python that Triton's stub is built for."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if own in SUPPORTED:
        return sys.executable, own
    for version in SUPPORTED:
        found = shutil.which(f"python{version}")
        if (
            found
            and subprocess.run([found, "-V"], capture_output=True, check=False).returncode == 0
        ):
            return found, version
    wanted = " or ".join(SUPPORTED)
    raise _cannot_run(f"it needs Python {wanted}, found only {own}")


def _uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise StackError("`uv` is missing: it installs the engine (`pip install uv`).")
    return found


def _call(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise StackError(f"Installing the engine failed: {' '.join(argv[:3])}\n{said}")


def _cannot_run(reason: str) -> CannotRunHere:
    return CannotRunHere(
        "The Triton server of the `local` extra",
        "OVERLINE_TRITON_URLS",
        reason,
        "triton.example.com:8001",
    )


def _print(line: str) -> None:
    sys.stderr.write(f"    {line}\n")


if __name__ == "__main__":
    try:
        ensure_engine_env(Path(sys.argv[1]), _print)
    except StackError as error:
        sys.exit(str(error))
