"""Child processes from which packages are hidden, as where they are not installed."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

_SITE = """
    import sys

    class Hiding:
        def __init__(self, finder):
            self._finder = finder

        def __getattr__(self, name):
            return getattr(self._finder, name)

        def find_spec(self, name, path=None, target=None):
            hidden = name.partition(".")[0] in HIDDEN
            return None if hidden else self._finder.find_spec(name, path, target)

    sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def hide(packages: tuple[str, ...], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Hide packages from the Python programs that are started from now on; `folder` is filled for that."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"HIDDEN = {packages!r}\n{textwrap.dedent(_SITE)}", encoding="utf-8")
    earlier = os.environ.get("PYTHONPATH")
    patch.setenv("PYTHONPATH", str(folder) if not earlier else f"{folder}{os.pathsep}{earlier}")
