"""The registrar's configuration: defaults, then registrar.toml, then the environment, each value with its origin."""

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

ENVIRONMENT_PREFIX: Final = "MIEN_REGISTRAR_"
MAX_INVITE_S: Final = 30 * 86400

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")
_MAX_CONFIG_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class RegistrarConfig:
    """What a registrar needs to know. Addresses are host:port, with IPv6 addresses in brackets.

    `address` is where devices reach the registrar, and is written into invites; `listen` is where it listens for them.
    `admin_address` and `admin_listen` are the same for operators. `coordinator_address` is told to devices that join.
    `names` are further host names and IP addresses that the server's certificate is to cover.
    """

    address: str
    coordinator_address: str
    admin_address: str = "127.0.0.1:7441"
    listen: str = ""
    admin_listen: str = ""
    names: tuple[str, ...] = ()
    store_url: str = ""
    device_certificate_days: int = 7
    renewal_grace_days: int = 30
    invite_valid_s: int = 86400
    max_join_failures: int = 10
    join_failure_window_s: int = 60
    drain_s: int = 10
    json_logs: bool = False

    def __post_init__(self) -> None:
        for name in ("address", "coordinator_address", "admin_address", "listen", "admin_listen"):
            value = getattr(self, name)
            listens = name in ("listen", "admin_listen")
            if listens and not value:
                continue
            if not _ADDRESS.fullmatch(value) or not (0 if listens else 1) <= _port(value) < 65536:
                raise ConfigError(f"{name} is {value!r}; write host:port, for example registrar.example:7440")
        limits = {
            "device_certificate_days": (1, 90),
            "renewal_grace_days": (0, 365),
            "invite_valid_s": (60, MAX_INVITE_S),
            "max_join_failures": (1, 1000),
            "join_failure_window_s": (1, 86400),
            "drain_s": (0, 300),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must lie between {low} and {high}")

    @property
    def join_listen(self) -> str:
        """Where the joining port listens: every interface unless `listen` says otherwise."""
        return self.listen or f"[::]:{_port(self.address)}"

    @property
    def operators_listen(self) -> str:
        """Where the operators' port listens: where `admin_address` points unless `admin_listen` says otherwise."""
        return self.admin_listen or self.admin_address

    @property
    def server_names(self) -> tuple[str, ...]:
        """Every name and address that the server's certificate covers."""
        hosts = (self.address.rpartition(":")[0], self.admin_address.rpartition(":")[0])
        return tuple(dict.fromkeys((*hosts, *self.names, "localhost", "127.0.0.1")))


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration, and for each field where its value came from."""

    config: RegistrarConfig
    origins: Mapping[str, str]


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> ResolvedConfig:
    """Return the resolved configuration; raises NotFoundError without a file, ConfigError naming a wrong field."""
    if not path.is_file():
        raise NotFoundError(f"there is no registrar in {path.parent}; run mien-registrar init, or name another --home")
    text = read_limited(path, _MAX_CONFIG_BYTES, what=path.name).decode(errors="replace")
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path.name} is not valid TOML ({error}); correct it") from error
    origins = {field.name: "default" for field in dataclasses.fields(RegistrarConfig)}
    origins |= dict.fromkeys(values, path.name)
    for name in origins:
        if (raw := environment.get(ENVIRONMENT_PREFIX + name.upper())) is not None:
            values[name], origins[name] = _toml_value(raw), ENVIRONMENT_PREFIX + name.upper()
    return ResolvedConfig(from_mapping(RegistrarConfig, values), origins)


def write_config(path: Path, config: RegistrarConfig) -> None:
    """Write every field of a configuration, so that a person sees what can be changed."""
    lines = ["# Settings of mien-registrar; `mien-registrar config show` explains where each value comes from."]
    lines += [f"{name} = {_toml_text(value)}" for name, value in to_mapping(config).items()]
    write_atomically(path, ("\n".join(lines) + "\n").encode())


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


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
