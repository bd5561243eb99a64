"""`python -m benchmarks --list` names the benchmarks, `--run` runs them one after another and keeps their results."""

from __future__ import annotations

import argparse
import json
import pkgutil
import subprocess
import sys
import time
from pathlib import Path


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


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; without one, all")
    parser.add_argument("--list", action="store_true", help="name the benchmarks, one a line (the default)")
    parser.add_argument("--run", action="store_true", help="run them, one after another")
    parser.add_argument("--quick", action="store_true", help="a stated part of each one's work")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"), help="folder for their results")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(names())):
        parser.error(f"there is no benchmark {unknown[0]}; --list names them")
    if args.run:
        sys.exit(1 if run(args.names or names(), args.out, quick=args.quick) else 0)
    print("\n".join(names()))


if __name__ == "__main__":
    main()
