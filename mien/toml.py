"""TOML that people write: every way in which it can be wrong is one error."""

from __future__ import annotations

import tomllib
from typing import Any

from mien.errors import ConfigError


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
