"""`python -m benchmarks --list` names the benchmarks."""

from __future__ import annotations

import argparse
import pkgutil
from pathlib import Path


def names() -> list[str]:
    """Return the names that `python -m benchmarks.NAME` takes."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if not module.name.startswith("_"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Name the benchmarks, one a line.")
    parser.add_argument("--list", action="store_true", help="the default and only thing to do")
    parser.parse_args()
    print("\n".join(names()))
