"""Settings of a server: a file in its folder, the environment, flags; and the checks that both servers share."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import tomli_w

from mien.errors import ConfigError, NotFoundError
from mien.log.chain import canonical_json
from mien.protocol.addresses import host_of, is_address
from mien.records import to_mapping
from mien.shell.files import write_atomically
from mien.shell.settings import Resolved, read_toml, resolve, value_of

T = TypeVar("T")

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
"""Hosts that are this machine, and reached from nowhere else."""

_URL_PASSWORD: Final = re.compile(r"(://[^:/?#@]*:).*@")  # to the last @: a password may hold any character
_URL_SECRET: Final = re.compile(r"([?&][^=&]*(?:pass|secret|key|token)[^=&]*=)[^&#]*", re.IGNORECASE)
_RELEASE_KEY: Final = re.compile(r"[0-9a-f]{64}")
_MAX_FILE_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Settings(Generic[T]):
    """Reader and writer of one program's settings, the flat frozen record `kind`. `name` is `registrar` or so."""

    kind: type[T]
    name: str

    def load(
        self, path: Path, flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] = os.environ
    ) -> Resolved[T]:
        """Return the resolved settings; raises NotFoundError without a file, ConfigError naming a wrong field."""
        if not path.is_file():
            raise NotFoundError(
                f"there is no {self.name} in {path.parent}; run mien-{self.name} init, or name another --home"
            )
        names = [field.name for field in dataclasses.fields(self.kind)]  # type: ignore[arg-type]
        variables = {name: self.variable(name) for name in names}
        given = {name: (value_of(environment[at]), at) for name, at in variables.items() if at in environment}
        told = {name: value for name, value in (flags or {}).items() if value is not None}
        given |= {name: (value, "--" + name.replace("_", "-")) for name, value in told.items()}
        return resolve(self.kind, read_toml(path, _MAX_FILE_BYTES, what=str(path)), path, given)

    def variable(self, name: str) -> str:
        """Return the environment variable that holds a setting."""
        return f"MIEN_{self.name}_{name}".upper()

    def write(self, path: Path, config: T) -> None:
        """Write the settings: what differs from the defaults, and the defaults as comments to choose from."""
        program = f"mien-{self.name}"
        text = f"# Settings of {program}; `{program} config show` says where each value comes from.\n"
        defaults = {field.name: field.default for field in dataclasses.fields(self.kind)}  # type: ignore[arg-type]
        for name, value in to_mapping(config).items():
            is_default = getattr(config, name) == defaults[name]
            text += textwrap.indent(tomli_w.dumps({name: value}), "# " if is_default else "")
        write_atomically(path, text.encode())


def check_address(name: str, value: str, *, example: str, lowest_port: int = 1) -> None:
    """Raise ConfigError unless a setting is host:port; a place to listen may have port 0, which takes a free one."""
    if not is_address(value, lowest_port=lowest_port):
        raise ConfigError(f"{name} is {value!r}; write host:port, for example {example}")


def check_limits(config: object, limits: Mapping[str, tuple[float, float]]) -> None:
    """Raise ConfigError unless every named field lies within its limits, both ends included."""
    for name, (low, high) in limits.items():
        if not low <= getattr(config, name) <= high:
            raise ConfigError(f"{name} is {getattr(config, name)}; it must lie between {low} and {high}")


def check_release_key(value: str) -> None:
    """Raise ConfigError unless a setting is empty or names a release key: 64 hex digits, an Ed25519 public key."""
    if value and not _RELEASE_KEY.fullmatch(value):
        raise ConfigError("release_key must be the 64 hex digits that mien-coordinator release-key show prints")


def shown(config: object) -> dict[str, Any]:
    """Return every setting by its name as it may be shown: passwords and keys in URLs are masked."""
    return {name: _masked(v) if isinstance(v, str) else v for name, v in to_mapping(config).items()}


def _masked(text: str) -> str:
    if "://" not in text:
        return text
    return _URL_SECRET.sub(r"\1***", _URL_PASSWORD.sub(r"\1***@", text))


def settings_sha256(config: object) -> str:
    """Return the hex SHA-256 of the settings as they may be shown, which tells whether they changed."""
    return hashlib.sha256(canonical_json(shown(config))).hexdigest()


def listening_place(address: str) -> str:
    """Return where a server listens that others reach at `address`: every interface at that port.

    What is reached by this machine's own name for itself is for this machine alone, and is listened for there alone.
    """
    return address if host_of(address) in LOOPBACK else f"[::]:{port_of(address)}"


def port_of(address: str) -> int:
    """Return the port of host:port."""
    return int(address.rpartition(":")[2])
