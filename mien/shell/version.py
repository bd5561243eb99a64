"""The version of the programs, as they tell each other."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Final

_UNINSTALLED: Final = "0.1.0"


def version() -> str:
    """Return the installed version of Mien, that of this source where it runs without having been installed."""
    try:
        return installed_version("mien")
    except PackageNotFoundError:
        return _UNINSTALLED


@functools.cache
def software(program: str) -> str:
    """Return a program's name and version; its name alone where it was not installed.

    It is looked up once: reading what is installed takes milliseconds, and servers tell every caller.
    """
    try:
        return f"{program} {installed_version('mien')}"
    except PackageNotFoundError:
        return program
