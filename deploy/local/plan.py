"""What one stack will be: which parts are ours, on which ports, with which settings.

A part whose address the user names (in the environment or in ``.env``) is not started here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.home import Home, Secrets, write_atomically
from deploy.local.ports import DEFAULT_PORTS, choose_ports, is_free
from settings import Settings

__all__ = ["ADDRESS_OF", "ALL_PARTS", "Plan", "given_settings"]

ALL_PARTS = ("postgres", "temporal", "triton", "worker", "api")

# The setting that, when a user gives it, stands for a server of the user's own.
ADDRESS_OF = {
    "postgres": "database_url",
    "temporal": "temporal_address",
    "triton": "triton_urls",
}

APP_ROLE = "overline_app"
READER_ROLE = "overline_reader"
DATABASE = "overline"


def given_settings(home: Path | None = None) -> Settings:
    """Return the settings a user gave, without those an earlier stack wrote to its folder."""
    if home is None:
        return Settings(_env_file=".env")
    return Settings(_env_file=".env", home=home)


@dataclass(frozen=True)
class Plan:
    """One stack, decided.

    Attributes:
        home: The state folder.
        secrets: Its secrets.
        given: Settings that the user gave.
        ours: Parts this stack starts, a subset of `ALL_PARTS`.
        ports: Ports by name.
    """

    home: Home
    secrets: Secrets
    given: Settings
    ours: frozenset[str]
    ports: Mapping[str, int]

    @classmethod
    def make(cls, home: Home, *, only: frozenset[str] = frozenset(ALL_PARTS)) -> Plan:
        """Decide: read the user's settings, choose ports, load the secrets.

        Args:
            home: The state folder.
            only: Parts to start at most.

        Raises:
            StackError: A setting cannot be honoured; says which and why.
        """
        given = given_settings(home.folder)
        ours = set(only)
        for part, field in ADDRESS_OF.items():
            if field in given.model_fields_set:
                ours.discard(part)
        wanted = dict(DEFAULT_PORTS)
        if "api_port" in given.model_fields_set:
            wanted["api"] = given.api_port
            if given.api_port == 0:  # asks for free ports: then for every part
                wanted = dict.fromkeys(DEFAULT_PORTS, 0)
            if given.api_port and not is_free(given.api_port, given.api_host):
                raise StackError(
                    f"Port {given.api_port}, which OVERLINE_API_PORT asks for, is taken. "
                    "Free it, name another, or unset the variable to get a free one."
                )
        return cls(home, Secrets.load(home), given, frozenset(ours), choose_ports(wanted))

    @property
    def database_url(self) -> str:
        """Database of the processes; holds a secret."""
        if "postgres" not in self.ours and self._gave("database_url"):
            return self.given.database_url.get_secret_value()
        return self._postgres_url(APP_ROLE, self.secrets.app)

    @property
    def reader_url(self) -> str | None:
        """Read-only database role for people; holds a secret."""
        if self.given.reader_database_url is not None:
            return self.given.reader_database_url.get_secret_value()
        if "postgres" in self.ours:
            return self._postgres_url(READER_ROLE, self.secrets.reader)
        return None

    @property
    def api_url(self) -> str:
        """Base URL of the API, for clients on this machine."""
        host = self.given.api_host
        host = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host  # noqa: S104 - compared
        return f"http://{host}:{self.ports['api']}"

    @property
    def temporal_address(self) -> str:
        """``host:port`` of Temporal's frontend."""
        if self._gave("temporal_address"):
            return self.given.temporal_address
        return f"127.0.0.1:{self.ports['temporal']}"

    @property
    def temporal_ui_url(self) -> str:
        """Base URL of Temporal's Web UI."""
        if self._gave("temporal_address") or self._gave("temporal_ui_url"):
            return self.given.temporal_ui_url
        return f"http://127.0.0.1:{self.ports['temporal_ui']}"

    @property
    def triton_urls(self) -> tuple[str, ...]:
        """``host:grpc_port`` of every Triton replica."""
        if self._gave("triton_urls"):
            return self.given.triton_urls
        return (f"127.0.0.1:{self.ports['triton_grpc']}",)

    @property
    def codec_endpoint(self) -> str:
        """URL at which the Web UI has payloads decrypted; holds a secret."""
        return f"{self.api_url}/codec/{self.codec_token}"

    @property
    def codec_token(self) -> str:
        """Capability token of the codec endpoint; a secret."""
        given = self.given.codec_token
        return self.secrets.codec_token if given is None else given.get_secret_value()

    @property
    def payload_keys(self) -> str:
        """Key ring of the payloads; a secret."""
        return self.given.payload_keys.get_secret_value() or self.secrets.payload_keys

    def variables(self) -> dict[str, str]:
        """Return the settings of every process of this stack, as environment variables."""
        values = {
            "OVERLINE_API_HOST": self.given.api_host,
            "OVERLINE_API_PORT": str(self.ports["api"]),
            "OVERLINE_API_URL": self.api_url,
            "OVERLINE_DATABASE_URL": self.database_url,
            "OVERLINE_TEMPORAL_ADDRESS": self.temporal_address,
            "OVERLINE_TEMPORAL_NAMESPACE": self.given.temporal_namespace,
            "OVERLINE_TEMPORAL_UI_URL": self.temporal_ui_url,
            "OVERLINE_TRITON_URLS": ",".join(self.triton_urls),
            "OVERLINE_MODELS": ",".join(self.given.models),
            "OVERLINE_ENGINE_ENV": str(self.given.engine_environment.absolute()),
            "OVERLINE_PAYLOAD_KEYS": self.payload_keys,
            "OVERLINE_CODEC_TOKEN": self.codec_token,
        }
        if self.reader_url is not None:
            values["OVERLINE_READER_DATABASE_URL"] = self.reader_url
        if self.secrets.api_key is not None:
            values["OVERLINE_API_KEY"] = self.secrets.api_key
        return values

    def write_settings(self) -> None:
        """Write ``overline.env``, from which every process and command of this stack reads."""
        lines = [
            "# Written by `overline up`, at every start. Holds secrets: keep it to yourself.",
            "# The environment and a .env file in the working folder come before this file.",
            *(f"{name}={value}" for name, value in self.variables().items()),
        ]
        write_atomically(self.home.settings, "\n".join(lines) + "\n")

    def environment(self) -> dict[str, str]:
        """Return the environment of our own processes: the caller's, and this folder's name."""
        own = {"OVERLINE_HOME": str(self.home.folder), "PYTHONUNBUFFERED": "1"}
        # What was decided comes before what the caller gave: a port of 0 has a number by now.
        return {**os.environ, **self.variables(), **own}

    def _gave(self, field: str) -> bool:
        return field in self.given.model_fields_set

    def _postgres_url(self, role: str, password: str) -> str:
        return f"postgresql://{role}:{password}@127.0.0.1:{self.ports['postgres']}/{DATABASE}"
