"""`python -m benchmarks --list` names the benchmarks, `--run` runs them one after another and keeps their results.

`--agree QUICK WHOLE` compares the ratios of two folders of results, as `--run` makes them with `--quick` and without.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

RATIO: Final = re.compile(r"(^|[._])(ratio|over)($|[._])")
"""Keys of figures that are ratios to a reference of the same run, by one of their words."""

AGREES_WITHIN: Final = 0.1
"""By how much a quick run's ratio may differ from the whole one's."""


def names() -> list[str]:
    """Return the names that `python -m benchmarks.NAME` takes."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if not module.name.startswith("_"))


def run(chosen: list[str], out: Path, *, quick: bool) -> int:
    """Run benchmarks, keep each one's line of JSON as NAME.json in a folder, and return how many did not end well.

    One that measured and does not hold what it was to show is kept, and counts as not well.
    """
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in chosen:
        began = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed += done.returncode != 0
        lines = done.stdout.strip().splitlines()
        if lines and lines[-1].startswith("{"):
            (out / f"{name}.json").write_text(json.dumps(json.loads(lines[-1]), indent=1) + "\n", encoding="utf-8")
        print(f"{name}: exit code {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
    return failed


def ratios(result: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Yield the figures of a result that are ratios to a reference of the same run, by key; rows are left out."""
    for key, value in result.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping) and key != "aims":
            yield from ratios(value, f"{name}.")
        elif isinstance(value, int | float) and RATIO.search(name):
            yield name, value


def agree(quick: Path, whole: Path) -> bool:
    """Print each ratio that both folders have, and return whether there is one and all agree within `AGREES_WITHIN`."""
    compared, every = 0, True
    for path in sorted(quick.glob("*.json")):
        if not (whole / path.name).is_file():
            continue
        first, second = (dict(ratios(json.loads((each / path.name).read_text("utf-8")))) for each in (quick, whole))
        for key in sorted(first.keys() & second.keys()):
            differs = abs(first[key] - second[key]) > AGREES_WITHIN * abs(second[key])
            compared, every = compared + 1, every and not differs
            print(f"{path.stem}: {key} {first[key]:.3g} quick, {second[key]:.3g} whole{', differs' * differs}")
    if not compared:
        print(f"{quick} and {whole} have no ratio in common: name two folders that --run made", file=sys.stderr)
    return every and compared > 0


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; without one, all")
    parser.add_argument("--list", action="store_true", help="name the benchmarks, one a line (the default)")
    parser.add_argument("--run", action="store_true", help="run them, one after another")
    parser.add_argument("--quick", action="store_true", help="a stated part of each one's work")
    parser.add_argument(
        "--agree", nargs=2, type=Path, metavar=("QUICK", "WHOLE"), help="compare the ratios of two folders of results"
    )
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"), help="folder for their results")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(names())):
        parser.error(f"there is no benchmark {unknown[0]}; --list names them")
    if args.agree:
        sys.exit(0 if agree(*args.agree) else 1)
    if args.run:
        sys.exit(1 if run(args.names or names(), args.out, quick=args.quick) else 0)
    print("\n".join(names()))


if __name__ == "__main__":
    main()
