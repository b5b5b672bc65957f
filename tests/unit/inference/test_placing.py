"""Where the engine's environment and Triton's files go, and what is said when they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local import engine_env
from deploy.local.engine_env import REQUIREMENTS, is_current, site_packages
from deploy.local.errors import CannotRunHere, StackError
from deploy.local.triton import Layout, build_repository, triton_launch


def fake_environment(folder: Path, version: str = "3.11") -> Path:
    """An environment with a Triton in it that cannot run."""
    packages = folder / f"lib/python{version}/site-packages"
    shipped = packages / "pytriton/tritonserver"
    (shipped / "backends/python").mkdir(parents=True)
    (shipped / "python_backend_stubs" / version).mkdir(parents=True)
    (shipped / "python_backend_stubs" / version / "triton_python_backend_stub").write_text("stub")
    base = folder / "base"
    (base / "lib").mkdir(parents=True)
    (base / "lib" / f"libpython{version}.so.1.0").touch()
    (folder / "pyvenv.cfg").write_text(f"home = {base}/bin\n")
    return folder


def test_an_environment_is_current_only_as_the_requirements_say(tmp_path: Path) -> None:
    assert not is_current(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    (tmp_path / "overline-engine").write_text("an older fingerprint\n")
    assert not is_current(tmp_path)
    (tmp_path / "overline-engine").write_text(engine_env._fingerprint())
    assert is_current(tmp_path)


def test_a_python_nobody_built_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_env, "SUPPORTED", ("3.1",))
    with pytest.raises(CannotRunHere, match=r"needs Python 3\.1,"):
        engine_env.ensure_engine_env(tmp_path / "engine")


def test_requirements_are_hashed_and_name_no_address() -> None:
    text = REQUIREMENTS.read_text()
    pinned = [line for line in text.splitlines() if "==" in line]
    assert pinned
    assert text.count("--hash=sha256:") >= len(pinned)
    assert "http" not in text
    assert "index" not in text


def test_the_repository_is_built_and_rebuilt(tmp_path: Path) -> None:
    environment = fake_environment(tmp_path / "engine")
    place = tmp_path / "triton"
    layout = build_repository(place, environment, ["scripted"], tmp_path / "models")
    config = (layout.repository / "scripted/config.pbtxt").read_text()
    assert f'string_value: "{layout.meter}/scripted"' in config
    assert (layout.repository / "scripted/1/model.py").exists()
    assert (layout.code / "inference/server.py").exists()
    (layout.repository / "gone").mkdir()
    build_repository(place, environment, ["scripted"], tmp_path / "models")
    assert not (layout.repository / "gone").exists()


def test_the_server_is_reached_from_this_machine_only(tmp_path: Path) -> None:
    environment = fake_environment(tmp_path / "engine")
    layout = Layout(tmp_path / "triton", environment, ("scripted",))
    ports = {"triton_grpc": 1, "triton_http": 2, "triton_metrics": 3}
    argv = triton_launch(layout, ports).argv
    assert {"--grpc-address=127.0.0.1", "--http-address=127.0.0.1"} <= set(argv)
    assert "--metrics-address=127.0.0.1" in argv
    restricted = [arg for arg in argv if "restricted" in arg]
    assert all("model-repository" in arg and "shared-memory" in arg for arg in restricted)
    assert len(restricted) == 2
    # Keys are made anew for every start.
    assert triton_launch(layout, ports).argv != argv


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="make engine"):
        site_packages(tmp_path)
    odd = fake_environment(tmp_path / "odd", "3.77")
    (odd / "base/lib/libpython3.77.so.1.0").unlink()
    with pytest.raises(CannotRunHere, match=r"libpython3\.77"):
        build_repository(tmp_path / "triton", odd, ["scripted"], tmp_path / "models")
