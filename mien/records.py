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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from mien.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Limits of a field, which stand in its annotation: `share: Annotated[float, within(0, 1)] = 0.5`."""

    words: str
    hold: Callable[[float], bool]


def within(low: float, high: float) -> Limits:
    """Return the limits from `low` to `high`, both included."""
    said = [f"{end:g}" if isinstance(end, float) else str(end) for end in (low, high)]
    return Limits(f"lie between {said[0]} and {said[1]}", lambda value: low <= value <= high)


def positive(at_most: float) -> Limits:
    """Return the limits of what is above 0 and at most `at_most`."""
    return Limits(f"be positive and at most {at_most:g}", lambda value: 0 < value <= at_most)


BELOW_1: Final = Limits("lie in [0, 1)", lambda value: 0 <= value < 1)


def check_limits(record: object, where: str) -> None:
    """Raise ConfigError for a field of a record beyond its limits (None is none) or not one of its words.

    The message names the first such field, `where` before it.
    """
    for name, allowed in _allowed(typing.cast("Any", type(record))).items():
        value = getattr(record, name)
        if isinstance(allowed, tuple):
            if value not in allowed:
                raise ConfigError(f"{where}{name} is {value!r}; known: {', '.join(map(str, allowed))}")
        elif value is not None and not allowed.hold(value):
            raise ConfigError(f"{where}{name} is {value}; it must {allowed.words}")


@functools.cache
def _allowed(cls: type[object]) -> Mapping[str, Limits | tuple[object, ...]]:
    """Return the limits, or the words, of the fields whose annotations name some."""
    found: dict[str, Limits | tuple[object, ...]] = {}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        if typing.get_origin(hint) is Annotated:
            found[name] = hint.__metadata__[0]
        elif typing.get_origin(hint) is Literal:
            found[name] = typing.get_args(hint)
    return found


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
    hint = getattr(hint, "__supertype__", hint)  # an id's (`mien.protocol.ids`) is what it is made of
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
    if dataclasses.is_dataclass(hint):
        expected = f"a table of {', '.join(field.name for field in dataclasses.fields(hint))}"
    raise ConfigError(f"{where} is {value!r} ({type(value).__name__}); expected {expected}")


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Return the values in a TOML text; raises ConfigError naming `what` and, where there is one, the line.

    A byte order mark, which editors on Windows begin a file with, is no part of the text.
    Besides mistakes of form that is a number of thousands of digits, and nesting that the parser cannot follow.
    """
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise ConfigError(f"{what} is not valid TOML ({error}); correct it") from error
    except RecursionError as error:
        raise ConfigError(f"{what} is nested too deeply to be what it should be; correct it") from error
