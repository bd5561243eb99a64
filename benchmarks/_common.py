"""What the benchmarks share: options, machine, commit, data, and how a result is printed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from mien.errors import TABLE, ConfigError, MienError, NotFoundError

ROOT = Path(__file__).resolve().parents[1]


def options(name: str, description: str) -> argparse.ArgumentParser:
    """Return the parser that every benchmark starts from."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help="a stated part of the work, within a minute on 2 cores")
    parser.add_argument("--json", action="store_true", help="print nothing but the line of JSON on standard output")
    return parser


def run(
    benchmark: Callable[[], Mapping[str, Any]],
    *,
    only_json: bool,
    holds: Callable[[Mapping[str, Any]], bool] = lambda _result: True,
) -> NoReturn:
    """Run a benchmark, print its result for people, then as one line of JSON, and end the program.

    Where it was measured, of what commit and by which command is in every result, whether the benchmark says so or not.
    The exit code is 1 where the result does not hold what it was to show. An error of Mien's ends with its sentence on
    standard error and its exit code.
    """
    try:
        found = benchmark()
        result = {"machine": machine(), "commit": commit(), "command": command(), **found}
    except MienError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        sys.exit(TABLE[type(error)].exit_code)
    if not only_json:
        width = max(len(key) for key in result)
        for key, value in result.items():
            if not isinstance(value, list | dict):
                print(f"{key:<{width}}  {value}")
    print(json.dumps(result, allow_nan=False))
    sys.exit(0 if holds(result) else 1)


def progress(message: str) -> None:
    """Tell people on standard error how far it is."""
    print(message, file=sys.stderr, flush=True)


def data_root() -> Path:
    """Return the folder of real faces; raises ConfigError if MIEN_DATA does not name one."""
    value = os.environ.get("MIEN_DATA")
    if not value:
        raise ConfigError(
            "MIEN_DATA is unset: this benchmark needs the folder of data sets that holds lfw/images and "
            "lfw/protocol/pairs.txt; set MIEN_DATA to it"
        )
    root = Path(value)
    if not root.is_dir():
        raise NotFoundError(f"MIEN_DATA names {value}, which is not a folder; correct it")
    return root


def database_bytes(path: Path) -> int:
    """Return the bytes of an SQLite database's pages that are in use, those in its write-ahead log too."""
    with closing(sqlite3.connect(path)) as db:
        pages, free, size = (
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> str:
    """Return the machine in words: processor, cores, Python."""
    return f"{_processor()}, {num_cores()} cores, {platform.system()}, Python {platform.python_version()}"


def commit() -> str:
    """Return the commit that is measured, marked if files differ from it; 'unknown' outside a repository."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("-changed" if changed else "")


def command() -> str:
    """Return the command line that gives this result again."""
    module = Path(sys.argv[0]).stem
    return shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
