"""Every setting of a program with default, limits and meaning, from the record that holds them: for people and docs."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class SettingRow:
    """One setting. `default` is as TOML writes it, "required" for none; `limits` are None where any value will do."""

    name: str
    default: str
    limits: tuple[float, float] | None
    meaning: str

    @property
    def meaning_for_people(self) -> str:
        """The meaning without the marks of Markdown: links as their words, names without their ticks."""
        return _LINK.sub(r"\1", self.meaning).replace("`", "")

    @property
    def range(self) -> str:
        """The limits in words."""
        return "" if self.limits is None else f"{_number(self.limits[0])} to {_number(self.limits[1])}"


def reference(kind: type[Any], limits: Mapping[str, tuple[float, float]]) -> list[SettingRow]:
    """Return the rows of a record whose fields are `Annotated` with their meanings, in their order."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        SettingRow(field.name, _default(field), limits.get(field.name), _meaning(field.name, hints[field.name]))
        for field in dataclasses.fields(kind)
    ]


def to_markdown(rows: list[SettingRow]) -> str:
    """Return rows as a table for docs."""
    lines = [f"| `{row.name}` | `{row.default}` | {row.range or '–'} | {row.meaning} |" for row in rows]
    return "\n".join(["| field | default | from – to | meaning |", "|---|---|---|---|", *lines]) + "\n"


def _meaning(name: str, hint: Any) -> str:
    meanings = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, str)]
    if len(meanings) != 1:
        raise TypeError(f'the setting {name} says not what it means: annotate it, {name}: Annotated[int, "..."]')
    return meanings[0]


def _default(field: dataclasses.Field[Any]) -> str:
    return "required" if field.default is dataclasses.MISSING else json.dumps(field.default)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
