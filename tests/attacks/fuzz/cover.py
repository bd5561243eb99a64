"""Coverage-guided fuzzing of readers with atheris; `make fuzz` runs it. Found inputs belong into `corpus`.

python -m tests.attacks.fuzz.cover --list
python -m tests.attacks.fuzz.cover --seconds 60 mien.protocol.canonical:task_from_json
python -m tests.attacks.fuzz.cover --seconds 20
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_INSTRUMENTED: Final = ["mien", "coordinator", "device_sdk", "simulation", "tomllib", "urllib"]


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one reader in this process, which then ends; an input that fails is written to the current folder."""
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=_INSTRUMENTED):  # whatever was imported before would stay dark
        from mien.errors import MienError
        from tests.attacks.fuzz.readers import readers
        from tests.attacks.fuzz.test_readers import folder_of

        reader = readers()[name]
        with contextlib.suppress(MienError):
            reader.read(reader.seeds[0])  # what readers import themselves

    def one(data: bytes) -> None:
        try:
            reader.read(data)
        except MienError:
            return

    with tempfile.TemporaryDirectory(prefix="mien-corpus-") as corpus:
        for number, seed in enumerate(reader.seeds):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        found = [str(folder_of(name))] if folder_of(name).is_dir() else []
        options = [f"-max_total_time={seconds}", "-timeout=30", "-rss_limit_mb=4096", "-max_len=65536"]
        atheris.Setup([sys.argv[0], *options, corpus, *found], one)
        atheris.Fuzz()


def main() -> None:
    """Fuzz the named readers one after the other, or all."""
    parser = argparse.ArgumentParser(description="Fuzz readers of foreign bytes, guided by coverage.")
    parser.add_argument("names", nargs="*", help="readers; default: all")
    parser.add_argument("--seconds", type=int, default=20, help="for each reader")
    parser.add_argument("--list", action="store_true", help="print the readers' names")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        fuzz(options.names[0], options.seconds)
        return
    from tests.attacks.fuzz.readers import readers

    names = options.names or list(readers())
    if options.list:
        print("\n".join(names))
        return
    command = [sys.executable, "-m", "tests.attacks.fuzz.cover", "--here", f"--seconds={options.seconds}"]
    failed = [name for name in names if subprocess.run([*command, name], check=False).returncode != 0]
    if failed:
        sys.exit(f"inputs that ended {', '.join(failed)} lie in this folder (crash-*); mend the reader, keep the input")


if __name__ == "__main__":
    main()
