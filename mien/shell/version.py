"""The version of the programs, as they tell each other."""

from __future__ import annotations

import functools
from typing import Final

_UNINSTALLED: Final = "0.1.0"


def version() -> str:
    """Return the installed version of Mien, that of this source where it runs without having been installed."""
    return _installed() or _UNINSTALLED


@functools.cache
def software(program: str) -> str:
    """Return a program's name and version; its name alone where it was not installed.

    It is looked up once: reading what is installed takes milliseconds, and servers tell every caller.
    """
    return " ".join(filter(None, (program, _installed())))


def _installed() -> str:
    from importlib import metadata  # loads the parser of e-mail; most commands tell nobody their version

    try:
        return metadata.version("mien")
    except metadata.PackageNotFoundError:
        return ""
