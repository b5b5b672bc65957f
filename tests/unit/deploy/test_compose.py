"""The compose stack: valid by the Compose schema, and at one with the rest of the project."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.compose.migrate import moved
from deploy.compose.secrets_for_compose import filled
from deploy.compose.triton import gpu_configuration, on_all_addresses
from deploy.local.errors import StackError
from deploy.local.temporal import DYNAMIC_CONFIG, SEARCH_ATTRIBUTES
from settings import Settings

FOLDER = Path(__file__).parents[3] / "deploy" / "compose"
COMPOSE = FOLDER / "compose.yaml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document = yaml.safe_load(COMPOSE.read_text())
    assert isinstance(document, dict)
    return document


def _validate(file: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "check-jsonschema"
    return subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", file],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_valid_by_the_compose_schema() -> None:
    done = _validate(COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_would_notice_a_misspelt_key(tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_grace_perod", 1))
    assert _validate(broken).returncode != 0


def test_every_service_named_by_another_exists(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        named = [str(volume).partition(":")[0] for volume in service.get("volumes", ())]
        kept = {volume for volume in named if re.fullmatch(r"[a-z-]+", volume)}
        assert kept <= set(compose["volumes"]), name


def test_every_file_it_mounts_or_builds_from_exists(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = str(volume).partition(":")[0]
            if source.startswith("."):
                assert (FOLDER / source).exists(), (name, source)
        if "build" in service:
            context = FOLDER / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).exists()


def test_every_variable_is_in_the_example_or_has_a_default() -> None:
    example = (FOLDER / ".env.example").read_text()
    documented = set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE))
    for name, rest in re.findall(r"\$\{([A-Z_]+)(:[-?])?", COMPOSE.read_text()):
        assert name in documented, name
        assert rest, f"{name} has neither a default nor a refusal"


def test_our_processes_are_given_settings_that_exist(compose: dict[str, Any]) -> None:
    known = {f"OVERLINE_{field.upper()}" for field in Settings.model_fields}
    for name, service in compose["services"].items():
        given = {key for key in service.get("environment", {}) if key.startswith("OVERLINE_")}
        assert given <= known, name


def test_published_ports_are_on_loopback(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for port in service.get("ports", ()):
            assert str(port).startswith("127.0.0.1:"), name


def test_no_image_floats(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if "build" not in service and not service["image"].startswith("overline-"):
            tag = service["image"].rpartition(":")[2]
            assert re.search(r"\d", tag), f"{name}: {service['image']}"


def test_the_collector_finds_what_it_scrapes(compose: dict[str, Any]) -> None:
    text = (FOLDER / "../otel/collector.yaml").read_text()
    hosts = set(re.findall(r":-([a-z]+)(?::\d+)?\}", text))
    assert {"api", "worker", "triton"} <= hosts
    assert hosts <= set(compose["services"])
    assert compose["services"]["worker"]["environment"]["OVERLINE_METRICS_PORT"] in text


def test_temporal_is_set_up_as_in_the_embedded_stack() -> None:
    script = (FOLDER / "temporal-namespace.sh").read_text()
    assert dict(re.findall(r"^add (\w+) (\w+)$", script, re.MULTILINE)) == SEARCH_ATTRIBUTES
    config = yaml.safe_load((FOLDER / "temporal-dynamic-config.yaml").read_text())
    assert {name: str(rows[0]["value"]).lower() for name, rows in config.items()} == DYNAMIC_CONFIG


def test_scripts_are_valid_shell() -> None:
    for script in FOLDER.glob("*.sh"):
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0, script.name


def test_the_images_get_every_package_of_ours() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE))
    root = FOLDER.parents[1]
    ours = {folder.parent.name for folder in root.glob("*/__init__.py")} - {"tests"}
    assert ours - {"migrations"} <= copied
    assert "migrations" in copied
    ignored = (root / ".dockerignore").read_text()
    assert all(f"!{name}\n" in ignored for name in copied)


def test_secrets_are_made_anew_each_time() -> None:
    example = (FOLDER / ".env.example").read_text()
    one, two = filled(example), filled(example)
    names = re.findall(r"^([A-Z_]+)=$", example, re.MULTILINE)
    assert "POSTGRES_PASSWORD" in names
    for name in set(names) - {"OVERLINE_MIGRATE_ARGS"}:
        first, second = (re.search(rf"^{name}=(.+)$", text, re.MULTILINE) for text in (one, two))
        assert first is not None
        assert second is not None
        assert first[1] != second[1]


def test_triton_listens_to_the_other_containers() -> None:
    argv = ["tritonserver", "--grpc-address=127.0.0.1", "--grpc-port=8001"]
    assert on_all_addresses(argv) == ["tritonserver", "--grpc-address=0.0.0.0", "--grpc-port=8001"]


def test_a_gpu_models_configuration_names_engine_and_checkpoint() -> None:
    text = gpu_configuration("smollm2-135m-instruct")
    for word in ("tensorrt_llm", "/checkpoints/smollm2-135m-instruct", "decoupled: true"):
        assert word in text


def test_models_served_elsewhere_are_read_from_words() -> None:
    assert moved(["m=a:1,b:2"]) == {"m": ("a:1", "b:2")}
    with pytest.raises(StackError, match="MODEL=HOST:PORT"):
        moved(["m"])
