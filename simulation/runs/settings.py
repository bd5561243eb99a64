"""Values of fields as people write them after `--set`."""

from __future__ import annotations

from typing import Any

from mien.errors import ConfigError
from mien.records import parse_toml


def value_of(text: str) -> Any:
    """Return a value written as in TOML; text needs no quotes."""
    try:
        return parse_toml(f"x = {text}", "the value")["x"]
    except ConfigError:
        return text.strip()
