"""A program's settings in layers: defaults, its TOML file, the environment, options; each value with its origin.

Settings are a frozen record whose fields have defaults, or records of them: `participation.min_cohort` is the field
`min_cohort` of the record `participation`, and the key of that name in the file's table of that name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from mien.errors import ConfigError
from mien.records import from_mapping, parse_toml, to_mapping
from mien.shell.files import read_limited

T = TypeVar("T")


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """The settings in force, and for each by its name where its value came from."""

    config: T
    origins: Mapping[str, str]

    def values(self) -> dict[str, Any]:
        """Return every setting's value as plain data by its name, those that are None included."""
        return dict(_plain("", self.config))


def read_toml(path: Path, limit_bytes: int, *, what: str | None = None) -> dict[str, Any]:
    """Return the values in a TOML file, which errors call `what` (its name, unless that says otherwise).

    Raises CorruptDataError for a missing or a long file, ConfigError for one that is no TOML.
    """
    what = path.name if what is None else what
    try:
        text = read_limited(path, limit_bytes, what=what).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} is not valid TOML ({error}); correct it") from error
    return parse_toml(text, what)


def resolve(
    kind: type[T], stated: Mapping[str, Any], stated_in: Path, given: Mapping[str, tuple[Any, str]]
) -> Resolved[T]:
    """Return the settings that a file states, with what is `given` by name laid over them: values and their origins,
    of which the file is one by its name.

    Raises ConfigError naming the field, its value and the nearest known field, and the file's path where that is at
    fault: a machine may have several homes.
    """
    laid = {name: dict(value) if isinstance(value, dict) else value for name, value in stated.items()}
    for name, (value, _) in given.items():
        table, _, key = name.rpartition(".")
        target = laid.setdefault(table, {}) if table else laid
        if not isinstance(target, dict):
            raise ConfigError(f"{table} is {target!r}; it must be a table, as in [{table}]")
        target[key] = value
    config, names = _read(kind, laid, stated, stated_in), set(_dotted("", stated))
    origins = {name: stated_in.name if name in names else "default" for name, _ in _plain("", config)}
    return Resolved(config, origins | {name: origin for name, (_, origin) in given.items()})


def _read(kind: type[T], laid: Mapping[str, Any], stated: Mapping[str, Any], stated_in: Path) -> T:
    """Return the record of the values `laid`; raises ConfigError, which names the file where that alone is at fault."""
    try:
        return from_mapping(kind, laid)
    except ConfigError as error:
        try:
            from_mapping(kind, stated)
        except ConfigError as own:
            if own.message == error.message:
                raise ConfigError(f"{stated_in}: {error.message}") from error
        raise


def value_of(text: str) -> Any:
    """Return a value written as in TOML; text needs no quotes."""
    try:
        return parse_toml(f"x = {text}", "the value")["x"]
    except ConfigError:
        return text.strip()


def _plain(prefix: str, record: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record and of those in it by their dotted names, each value as plain data."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            yield from _plain(f"{prefix}{field.name}.", value)
        else:
            yield prefix + field.name, to_mapping(value)


def _dotted(prefix: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield from _dotted(f"{prefix}{name}.", value) if isinstance(value, dict) else (prefix + name,)
