"""Generate the gRPC stubs under mien/protocol/v1 from proto/mien/v1, or check that they are fresh (--check)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
STUBS = ROOT / "mien" / "protocol" / "v1"


def generate(target: Path) -> None:
    """Write the stubs of every .proto file into `target`, importing each other as mien.protocol.v1."""
    protos = sorted((ROOT / "proto" / "mien" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        include = str(resources.files("grpc_tools") / "_proto")
        flags = [f"--{kind}={folder}" for kind in ("python_out", "pyi_out", "grpc_python_out", "mypy_grpc_out")]
        if protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"-I{include}", *flags, *map(str, protos)]) != 0:
            sys.exit("protoc failed")
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(folder).rglob("*.py*")):
            text = path.read_text(encoding="utf-8").replace("from mien.v1 import", "from mien.protocol.v1 import")
            text = text.replace("import mien.v1.", "import mien.protocol.v1.").replace(
                " mien.v1.", " mien.protocol.v1."
            )
            (target / path.name).write_text(text, encoding="utf-8")
    (target / "__init__.py").write_text('"""Generated from proto/mien/v1 by scripts/generate_stubs.py."""\n')


def stale(fresh: Path) -> list[str]:
    """Return the names of stubs that differ from freshly generated ones."""
    names = {p.name for p in fresh.iterdir()} | {p.name for p in STUBS.glob("*.py*")}
    return sorted(
        name
        for name in names
        if not (fresh / name).exists()
        or not (STUBS / name).exists()
        or (fresh / name).read_bytes() != (STUBS / name).read_bytes()
    )


def main() -> None:
    """Generate, or compare and exit 1 with the names of stale files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a stub is stale")
    if not parser.parse_args().check:
        generate(STUBS)
        return
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "v1"
        generate(fresh)
        if names := stale(fresh):
            sys.exit(f"stale stubs: {', '.join(names)}; run python scripts/generate_stubs.py")


if __name__ == "__main__":
    main()
