"""Frozen dataclasses from plain data (TOML, JSON) and back, with errors that name the field, the value and the fix.

Standard library only, so that a program can read its settings before it loads anything large.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from mien.errors import ConfigError

T = TypeVar("T")


def from_mapping(cls: type[T], data: Mapping[str, Any], *, where: str = "") -> T:
    """Return the frozen record `cls` built from plain data, nested records included.

    Raises ConfigError that names the field, the wrong value and the nearest known field.
    """
    hints = _hints(typing.cast("Any", cls))
    fields = {f.name: f for f in dataclasses.fields(typing.cast("Any", cls))}
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            raise ConfigError(
                f"unknown field {where + str(key)!r}"
                + (f"; did you mean {where + near[0]!r}?" if near else f"; known fields: {', '.join(fields)}")
            )
        values[key] = _convert(hints[key], value, where + str(key))
    for name, spec in fields.items():
        if name not in values and spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ConfigError(f"field {where + name!r} is missing; add it")
    return cls(**values)


@functools.cache
def _hints(cls: type[object]) -> Mapping[str, Any]:
    """Return a record's types by field; looked up once, for methods read their options for every simulated phone."""
    return typing.get_type_hints(cls)


def to_mapping(record: object) -> dict[str, Any]:
    """Return a record as plain data that TOML and JSON can hold; the inverse of `from_mapping`."""

    def plain(value: object) -> object:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                f.name: plain(getattr(value, f.name))
                for f in dataclasses.fields(value)
                if getattr(value, f.name) is not None
            }
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        return value

    return typing.cast("dict[str, Any]", plain(record))


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Return `value` as the annotated type, or raise ConfigError saying what was expected."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in args if arg is not types.NoneType]
        return None if value is None and len(inner) < len(args) else _convert(inner[0], value, where)
    if origin is Literal:
        if value not in args:
            raise ConfigError(f"{where} is {value!r}; allowed: {', '.join(map(repr, args))}")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        if len(args) == len(value):
            return tuple(
                _convert(arg, item, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, value, strict=True))
            )
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return from_mapping(hint, value, where=where + ".")
    if origin is not None and origin not in (tuple,) and isinstance(value, Mapping):
        return dict(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and hint in (int, str, bool) and type(value) is hint:
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where} is {value!r} ({type(value).__name__}); expected {expected}")


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Return the values in a TOML text; raises ConfigError naming `what` and, where there is one, the line.

    Besides mistakes of form that is a number of thousands of digits, and nesting that the parser cannot follow.
    """
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what} is not valid TOML ({error}); correct it") from error
    except RecursionError as error:
        raise ConfigError(f"{what} is nested too deeply to be what it should be; correct it") from error
