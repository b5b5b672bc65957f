"""The real `tritonserver` from its wheel, on loopback, with our models in its repository."""

from __future__ import annotations

import filecmp
import hashlib
import secrets
import shutil
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import inference
from deploy.local.engine_env import site_packages
from deploy.local.errors import CannotRunHere
from deploy.local.part import Part, Say
from deploy.local.processes import Launch
from deploy.local.triton_models import prepare_model
from inference.client import TritonClient
from inference.errors import EngineError
from inference.models.registry import find

__all__ = ["Layout", "TritonPart", "build_repository", "models_problem", "triton_launch"]


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it, not a scratch folder


@dataclass(frozen=True)
class Layout:
    """Where the parts of one Triton lie.

    Attributes:
        folder: Everything of this server: repository, backends, code, meter.
        engine_env: Python environment of the models.
        models: Names of the models it serves.
    """

    folder: Path
    engine_env: Path
    models: tuple[str, ...]

    @property
    def repository(self) -> Path:
        """Triton's model repository."""
        return self.folder / "repository"

    @property
    def backends(self) -> Path:
        """Triton's backends, with the Python stub beside its library."""
        return self.folder / "backends"

    @property
    def code(self) -> Path:
        """A copy of the `inference` package, for the models to import."""
        return self.folder / "code"

    @property
    def meter(self) -> Path:
        """The engines' durable token counts, one folder a model."""
        return self.folder / "meter"


def build_repository(
    folder: Path,
    engine_env: Path,
    models: Sequence[str],
    models_folder: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Layout:
    """Lay out everything `tritonserver` reads; what is there already is brought up to date.

    Args:
        folder: Where to put it.
        engine_env: Python environment of the models, already installed.
        models: Names of registered models to serve.
        models_folder: Where tokenizer artefacts are, or are made.
        say: Takes progress lines.

    Raises:
        StackError: The environment is missing.
        CannotRunHere: Triton has no stub for the environment's Python.
        KeyError: A model is not registered.
        ArtefactError: A model's weights are missing or damaged.
    """
    layout = Layout(folder.absolute(), engine_env.absolute(), tuple(models))
    layout.folder.mkdir(parents=True, exist_ok=True)
    _copy_backend(layout)
    _replace_tree(Path(inference.__file__).parent, layout.code / "inference")
    # Rebuilt whole: a model that is no longer wanted must not be loaded.
    shutil.rmtree(layout.repository, ignore_errors=True)
    for name in layout.models:
        prepare_model(find(name), layout, models_folder.absolute(), say)
    return layout


def triton_launch(layout: Layout, ports: Mapping[str, int]) -> Launch:
    """How to start the server.

    Args:
        layout: What `build_repository` laid out.
        ports: Ports by name: `triton_grpc`, `triton_http`, `triton_metrics`.
    """
    packages = site_packages(layout.engine_env)
    argv = [str(packages / "pytriton/tritonserver/bin/tritonserver")]
    argv += [f"--model-repository={layout.repository}", f"--backend-directory={layout.backends}"]
    argv += ["--model-control-mode=none", "--disable-auto-complete-config"]
    argv += ["--exit-on-error=true", "--exit-timeout-secs=3"]
    argv += ["--grpc-address=127.0.0.1", f"--grpc-port={ports['triton_grpc']}"]
    argv += ["--http-address=127.0.0.1", f"--http-port={ports['triton_http']}"]
    argv += ["--metrics-address=127.0.0.1", f"--metrics-port={ports['triton_metrics']}"]
    argv += ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]
    # Clients ping often to notice a frozen server; by default that is answered with GOAWAY.
    argv += ["--grpc-http2-min-recv-ping-interval-without-data=1000"]
    argv += ["--grpc-http2-max-ping-strikes=0"]
    # Nobody needs these here, and a model repository that can be written is code execution.
    closed = "shared-memory,model-repository,trace,logging"
    argv += [f"--grpc-restricted-protocol={closed}:admin-key={secrets.token_urlsafe(16)}"]
    argv += [f"--http-restricted-api={closed}:admin-key={secrets.token_urlsafe(16)}"]
    argv += [f"--backend-config=python,shm-region-prefix-name={_region_prefix(layout)}"]
    env = {
        # The stub runs isolated and finds its site-packages by the first `python3` in PATH.
        "PATH": f"{layout.engine_env / 'bin'}:/usr/bin:/bin",
        "HOME": str(layout.folder),
        # Without the wheel's libraries the stub dies at once and Triton waits for it for ever.
        "LD_LIBRARY_PATH": ":".join(
            [str(packages / "nvidia_pytriton.libs"), *_interpreter_libraries(layout)]
        ),
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
    }
    return Launch(argv=argv, env=env, cwd=layout.folder)


async def models_problem(url: str, models: Sequence[str], limit_s: float = 5.0) -> str | None:
    """Ask every model process for a sign of life; None when all gave one.

    Triton's own readiness is no use: it stays green when a model's process dies.
    """
    async with TritonClient(url) as client:
        for name in models:
            try:
                await client.ping(find(name).triton_model, limit_s)
            except EngineError as error:
                return f"model {name}: {error}"
    return None


class TritonPart(Part):
    """The server process."""

    name = "triton"
    start_limit_s = 120.0
    patience_s = 15.0
    health_limit_s = 10.0

    def __init__(
        self,
        folder: Path,
        engine_env: Path,
        models: Sequence[str],
        models_folder: Path,
        ports: Mapping[str, int],
    ) -> None:
        """Take where it lies, what it serves and where it listens.

        Args:
            folder: Everything of this server.
            engine_env: Python environment of the models.
            models: Names of registered models.
            models_folder: Where tokenizer artefacts are, or are made.
            ports: Ports by name: `triton_grpc`, `triton_http`, `triton_metrics`.
        """
        self._folder = folder
        self._engine_env = engine_env
        self._models = tuple(models)
        self._models_folder = models_folder
        self._ports = ports
        self._layout: Layout | None = None

    @property
    def url(self) -> str:
        """``host:port`` of the gRPC listener."""
        return f"127.0.0.1:{self._ports['triton_grpc']}"

    @property
    def ready_text(self) -> str:
        """Its address and models."""
        return f"{self.url} · {', '.join(self._models)}"

    def prepare(self, say: Say) -> None:
        """Lay out the repository; the first time this unpacks weights and builds tokenizers."""
        self._layout = build_repository(
            self._folder, self._engine_env, self._models, self._models_folder, say
        )

    def launch(self) -> Launch:
        """Return the server's command line."""
        if self._layout is None:
            self.prepare(lambda line: None)
        assert self._layout is not None
        _remove_regions(self._layout)
        return triton_launch(self._layout, self._ports)

    async def problem(self) -> str | None:
        """Return what is wrong with the server or a model; None when all answer."""
        return await models_problem(self.url, self._models)


def _region_prefix(layout: Layout) -> str:
    """Start of the names of the server's shared memory regions.

    The folder's own, so that two servers do not share any and a server that was killed leaves
    regions its successor recognises.
    """
    return f"overline_{hashlib.sha256(str(layout.folder).encode()).hexdigest()[:12]}_"


def _remove_regions(layout: Layout) -> None:
    """Remove what a killed server of this folder left in shared memory; nobody else would."""
    for left in _SHARED_MEMORY.glob(f"{_region_prefix(layout)}*"):
        left.unlink(missing_ok=True)


def _copy_backend(layout: Layout) -> None:
    """Copy the Python backend and put the stub for this Python beside its library."""
    shipped = site_packages(layout.engine_env) / "pytriton/tritonserver"
    version = _python_version(layout)
    stub = shipped / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise _cannot_run(f"its wheel is missing or has no stub for Python {version}")
    library = f"libpython{version}.so.1.0"
    if not any((Path(place) / library).exists() for place in _interpreter_libraries(layout)):
        # Triton would wait for its stub for ever.
        raise _cannot_run(f"its stub needs {library}, and the Python in use was built without it")
    target = layout.backends / "python"
    kept = target / stub.name
    # Size and time tell: another environment may have brought another Triton or Python.
    if not kept.exists() or not filecmp.cmp(stub, kept):
        shutil.copytree(shipped / "backends/python", target, dirs_exist_ok=True)
        shutil.copy2(stub, kept)


def _python_version(layout: Layout) -> str:
    return site_packages(layout.engine_env).parent.name.removeprefix("python")


def _base_prefix(layout: Layout) -> Path:
    """Where the environment's Python is installed: the stub links against its library."""
    for line in (layout.engine_env / "pyvenv.cfg").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            return Path(value.strip()).parent
    raise _cannot_run(f"{layout.engine_env} does not say which Python it was made from")


def _interpreter_libraries(layout: Layout) -> list[str]:
    """Folders in which the stub's Python library may be, that of its own Python first."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    own = _base_prefix(layout) / "lib"
    return [str(own), str(own / multiarch), f"/usr/lib/{multiarch}", "/usr/lib64"]


def _cannot_run(reason: str) -> CannotRunHere:
    return CannotRunHere(
        "The Triton server of the `local` extra",
        "OVERLINE_TRITON_URLS",
        reason,
        "triton.example.com:8001",
    )


def _replace_tree(source: Path, target: Path) -> None:
    scratch = target.with_name(f".{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(source, scratch, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(target, ignore_errors=True)
    scratch.replace(target)
