"""The coordinator's configuration: defaults, coordinator.toml, the environment, flags; each value with its origin."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mien.errors import ConfigError, NotFoundError
from mien.records import from_mapping, to_mapping
from mien.shell.files import read_limited, write_atomically

ENVIRONMENT_PREFIX: Final = "MIEN_COORDINATOR_"
DEFAULT_PORT: Final = 7443

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")
_MAX_CONFIG_BYTES: Final = 64 * 1024

_LIMITS: Final = {
    "crl_fetch_s": (0.2, 3600.0),
    "crl_max_age_s": (1.0, 30 * 86400.0),
    "check_in_hold_s": (0.0, 300.0),
    "retry_after_s": (0.1, 86400.0),
    "upload_idle_s": (0.5, 3600.0),
    "drain_s": (0.0, 600.0),
    "restart_grace_s": (0.0, 3600.0),
    "max_step_ratio": (1e-6, 1e6),
    "max_aborted": (1, 1000),
    "max_calls": (16, 100_000),
    "max_model_bytes": (1024, 16 * 1024**3),
    "max_shard_bytes": (1024, 16 * 1024**3),
}


@dataclass(frozen=True)
class CoordinatorConfig:
    """What a coordinator needs to know. Addresses are host:port, with IPv6 addresses in brackets.

    `address` is where devices and operators reach the coordinator, `listen` where it listens (default: every interface
    at that port), `names` are further names for its certificate. `registrar_address` is asked for revocations,
    `registrar_admin_address` for invites. `database_url` and `blobs_url` default to files in the coordinator's folder.
    Device calls are refused once the revocation list is older than `crl_max_age_s`. `check_in_hold_s` is how long a
    check-in is held while a round may still want the device, `retry_after_s` the pause that it is told afterwards.
    A round is aborted when its step is larger than `max_step_ratio` of the model's norm; a task pauses after
    `max_aborted` aborted attempts in a row.
    """

    address: str
    listen: str = ""
    names: tuple[str, ...] = ()
    registrar_address: str = ""
    registrar_admin_address: str = "127.0.0.1:7441"
    database_url: str = ""
    blobs_url: str = ""
    spool_folder: str = ""
    crl_fetch_s: float = 5.0
    crl_max_age_s: float = 86400.0
    check_in_hold_s: float = 20.0
    retry_after_s: float = 5.0
    upload_idle_s: float = 60.0
    drain_s: float = 20.0
    restart_grace_s: float = 30.0
    max_step_ratio: float = 1.0
    max_aborted: int = 5
    max_calls: int = 4096
    max_model_bytes: int = 1024**3
    max_shard_bytes: int = 256 * 1024**2
    json_logs: bool = False

    def __post_init__(self) -> None:
        for name in ("address", "listen", "registrar_address", "registrar_admin_address"):
            value = getattr(self, name)
            if not value and name != "address":
                continue
            if not _ADDRESS.fullmatch(value) or not (0 if name == "listen" else 1) <= port_of(value) < 65536:
                raise ConfigError(f"{name} is {value!r}; write host:port, for example coordinator.example:7443")
        for name, (low, high) in _LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must lie between {low} and {high}")

    @property
    def listens_at(self) -> str:
        """Where the server listens: every interface unless `listen` says otherwise."""
        return self.listen or f"[::]:{port_of(self.address)}"

    @property
    def server_names(self) -> tuple[str, ...]:
        """Every name and address that the server's certificate covers."""
        return tuple(dict.fromkeys((self.address.rpartition(":")[0], *self.names, "localhost", "127.0.0.1")))


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration, and for each field where its value came from: default, file, environment or flag."""

    config: CoordinatorConfig
    origins: Mapping[str, str]


def load_config(
    path: Path, flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] = os.environ
) -> ResolvedConfig:
    """Return the resolved configuration; raises NotFoundError without a file, ConfigError naming a wrong field."""
    if not path.is_file():
        raise NotFoundError(
            f"there is no coordinator in {path.parent}; run mien-coordinator init, or name another --home"
        )
    text = read_limited(path, _MAX_CONFIG_BYTES, what=path.name).decode(errors="replace")
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path.name} is not valid TOML ({error}); correct it") from error
    origins = {field.name: "default" for field in dataclasses.fields(CoordinatorConfig)}
    origins |= dict.fromkeys(values, path.name)
    for name in list(origins):
        variable = ENVIRONMENT_PREFIX + name.upper()
        if (raw := environment.get(variable)) is not None:
            values[name], origins[name] = _toml_value(raw), variable
        if (flag := (flags or {}).get(name)) is not None:
            values[name], origins[name] = flag, "--" + name.replace("_", "-")
    return ResolvedConfig(from_mapping(CoordinatorConfig, values), origins)


def write_config(path: Path, config: CoordinatorConfig) -> None:
    """Write a configuration: what differs from the defaults, and the defaults as comments to choose from."""
    defaults = {field.name: field.default for field in dataclasses.fields(CoordinatorConfig)}
    lines = ["# Settings of mien-coordinator; `mien-coordinator config show` says where each value comes from."]
    for name, value in to_mapping(config).items():
        mark = "# " if getattr(config, name) == defaults[name] else ""
        lines.append(f"{mark}{name} = {_toml_text(value)}")
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def port_of(address: str) -> int:
    """Return the port of host:port."""
    return int(address.rpartition(":")[2])


def _toml_value(raw: str) -> Any:
    """Return an environment variable's value as TOML would read it; anything else is plain text."""
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _toml_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_toml_text(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
