"""The one typed settings object of every Overline process.

Values come, strongest first, from keyword arguments, environment variables (prefix ``OVERLINE_``),
a ``.env`` file in the working directory, and ``overline.env`` in the state folder, which
``overline up`` writes with the real ports, addresses and secrets of the embedded stack. Every
default works for the embedded stack. Nothing else in the project reads the environment.
"""

from __future__ import annotations

import os
import sys
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

__all__ = ["Settings", "load_settings", "state_folder"]


def state_folder() -> Path:
    """Return the state folder: ``OVERLINE_HOME`` or ``~/.overline``."""
    return Path(os.environ.get("OVERLINE_HOME") or Path.home() / ".overline").expanduser()


class Settings(BaseSettings):
    """Effective settings; frozen, validated when the process starts."""

    model_config = SettingsConfigDict(
        env_prefix="OVERLINE_", extra="ignore", frozen=True, env_file_encoding="utf-8"
    )

    home: Path = Field(
        default_factory=state_folder,
        description="State folder of the embedded stack: data, logs, ports, secrets.",
    )
    engine_env: Path | None = Field(
        default=None,
        description="Python environment of the models under Triton; default: `engine` in the "
        "virtual environment Overline runs in, or in <home>.",
    )

    # 01 application
    api_host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    api_port: int = Field(default=8080, description="TCP port the API listens on.")
    api_url: str = Field(
        default="http://127.0.0.1:8080", description="Base URL at which clients reach the API."
    )
    api_key: SecretStr | None = Field(
        default=None, description="API key the command line uses (`ol_<id>_<secret>`)."
    )
    max_request_bytes: int = Field(
        default=2_000_000, description="Largest request body accepted, in bytes."
    )
    max_map_bytes: int = Field(
        default=32_000_000, description="Largest body of a map's submission accepted, in bytes."
    )
    map_run_inputs: int = Field(
        default=500,
        ge=1,
        description="Inputs of a map begun in one run of its workflow, before the next run.",
    )
    max_file_bytes: int = Field(
        default=200_000_000, ge=1_000, description="Largest file kept for a batch, in bytes."
    )
    batch_concurrency: int = Field(
        default=16, ge=1, le=200, description="Lines of a batch worked on at a time, at most."
    )
    batch_run_slices: int = Field(
        default=400,
        ge=1,
        description="Slices of a batch begun in one run of its workflow, before the next run.",
    )

    on_disconnect: Literal["cancel", "finish"] = Field(
        default="cancel",
        description="What becomes of a call of the OpenAI-compatible routes when its client goes "
        "away: `cancel` ends it and bills what was made, `finish` lets it be read by its id.",
    )

    # Postgres
    database_url: SecretStr = Field(
        default=SecretStr("postgresql://overline_app@127.0.0.1:5433/overline"),
        description="Postgres of the processes; a role that owns nothing.",
    )
    admin_database_url: SecretStr | None = Field(
        default=None, description="Postgres role that may migrate; only `up` and `migrate` use it."
    )
    reader_database_url: SecretStr | None = Field(
        default=None, description="Read-only Postgres role for people (`overline psql`)."
    )
    database_pool_size: int = Field(default=10, description="Largest number of connections.")

    # 04 orchestrator
    temporal_address: str = Field(default="127.0.0.1:7233", description="Temporal frontend.")
    temporal_namespace: str = Field(default="default", description="Temporal namespace.")
    temporal_api_key: SecretStr | None = Field(default=None, description="Temporal Cloud API key.")
    temporal_tls: bool = Field(default=False, description="Connect to Temporal with TLS.")
    temporal_ui_url: str = Field(
        default="http://127.0.0.1:8233", description="Base URL of the Temporal Web UI."
    )
    temporal_dynamic_config: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Dynamic configuration of the embedded Temporal, `name=value`, by comma.",
    )
    task_queue: str = Field(default="overline", description="Temporal task queue of the workers.")
    workers: int = Field(
        default=2,
        description="Worker processes: the embedded stack starts as many, and each takes its share "
        "of the engines' slots.",
    )
    worker_concurrency: int = Field(
        default=100, description="Activities one worker process runs at a time."
    )

    # tools
    egress_allow: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="`host:port` that tools may reach besides public addresses on ports 80 and "
        "443, by comma.",
    )
    tool_secrets_file: Path | None = Field(
        default=None,
        description="JSON file of the secrets that tools may name; see docs/tools.md.",
    )
    mcp_servers: dict[str, tuple[str, ...]] | None = Field(
        default=None,
        description="MCP servers that workers may start, as JSON: name to command line.",
    )
    tool_max_bytes: int = Field(
        default=16_777_216, description="Longest answer of a tool that is read, in bytes."
    )
    tool_shown_chars: int = Field(
        default=2_000,
        description="Characters of a tool's answer that a model is shown; a longer one is kept "
        "whole as a blob.",
    )
    worker_deployment: str = Field(
        default="",
        description="Temporal worker deployment the workers belong to; empty: no versioning.",
    )
    build_id: str = Field(
        default="", description="Build of this code within the worker deployment."
    )

    # payloads
    payload_inline_bytes: int = Field(
        default=131_072,
        ge=1_024,
        description="Smallest Temporal payload that is kept in Postgres, with a reference in the "
        "history, in bytes.",
    )
    payload_max_bytes: int = Field(
        default=16_777_216,
        ge=65_536,
        description="Largest value that is passed between workflow and activity, in bytes.",
    )
    payload_keys: SecretStr = Field(
        default=SecretStr(""),
        description=(
            "Key ring of Temporal payloads: `id:base64,id:base64`, each 32 bytes; the first "
            "encrypts, all decrypt. Empty is allowed only where no payload is handled."
        ),
    )
    codec_token: SecretStr | None = Field(
        default=None, description="Capability token in the Web UI's codec endpoint."
    )

    # 08 inference engine
    triton_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("127.0.0.1:8001",), description="Triton replicas, `host:grpc_port`, by comma."
    )
    models_dir: Path | None = Field(
        default=None, description="Tokenizers and templates by model; default: <home>/models."
    )
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("smollm2-135m-instruct", "gemma-3-270m", "all-minilm-l6-v2"),
        description="Registered models the embedded stack serves, by comma.",
    )
    keep_days: int = Field(
        default=30,
        ge=1,
        description="Days after which housekeeping removes journal, events and prompts of ended "
        "tasks, and payloads whose history is gone.",
    )
    upstreams: Path | None = Field(
        default=None,
        description="YAML or JSON file of OpenAI-compatible upstreams and of routes to them; read "
        "by `overline up` and `migrate`. See docs/09-models.md.",
    )
    upstream_keys_file: Path | None = Field(
        default=None,
        description="JSON file of the upstreams' API keys, by name; read again when it changes.",
    )
    default_max_cost_usd: Decimal | None = Field(
        default=None, description="Budget of a task whose request names none, in USD."
    )
    session_idle_seconds: int = Field(
        default=300,
        ge=1,
        le=86_400,
        description="The workflow of a session ends when nothing is said for so many seconds.",
    )

    # observability
    otlp_endpoint: str | None = Field(
        default=None, description="OTLP/HTTP base URL of a collector; unset: traces stay local."
    )
    trace_prompts: bool = Field(
        default=False, description="Put prompts and answers on spans; off by default."
    )
    log_level: str = Field(default="INFO", description="Log level of every process.")
    metrics_host: str = Field(
        default="127.0.0.1", description="Address a worker's Prometheus endpoint listens on."
    )
    metrics_port: int = Field(
        default=0, description="Port of a worker's Prometheus endpoint; 0: none."
    )

    @field_validator(
        "triton_urls", "models", "egress_allow", "temporal_dynamic_config", mode="before"
    )
    @classmethod
    def _split(cls, value: object) -> object:
        """Lists in the environment are separated by commas, as people write them."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @property
    def temporal_uses_tls(self) -> bool:
        """Whether Temporal is spoken to over TLS; a key is never sent without."""
        return self.temporal_tls or self.temporal_api_key is not None

    @property
    def engine_environment(self) -> Path:
        """Folder of the engine's Python environment."""
        # Beside the packages of the harness, where every state folder finds it again; a Python
        # that is not ours to write into is left alone.
        ours = Path(sys.prefix) if sys.prefix != sys.base_prefix else self.home
        return self.engine_env or ours / "engine"

    @property
    def models_folder(self) -> Path:
        """Folder that holds one sub-folder of tokenizer artefacts a model."""
        return self.models_dir or self.home / "models"


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """Read the settings of this process once.

    Raises:
        pydantic.ValidationError: A variable has a value of the wrong kind.
    """
    return Settings(_env_file=(state_folder() / "overline.env", ".env"))
