"""What users install: distributions as `make dist` builds them, in environments that hold nothing of this one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers import ROOT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "mien", "coordinator", "device_sdk", "simulation")
COORDINATOR_LOCK = ROOT / "deploy" / "requirements-coordinator.lock"
DEVICE_LOCK = ROOT / "deploy" / "requirements-device.lock"


def uv(*arguments: str | Path, cwd: Path = ROOT) -> None:
    """Run uv on what was downloaded for this environment; only where that is gone, with the network."""
    tool = Path(sys.executable).with_name("uv")
    for offline in (["--offline"], []):
        command = [str(tool), *map(str, arguments), "--quiet", *offline]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode == 0:
            return
    raise AssertionError(f"{' '.join(command)}: {done.stderr}")


def distributions(folder: Path) -> tuple[Path, Path]:
    """Return the source distribution and the wheel that is built from it, as `make dist` makes them."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    uv("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder / "dist", cwd=source)
    (sdist,), (wheel,) = (folder / "dist").glob("mien-*.tar.gz"), (folder / "dist").glob("mien-*.whl")
    return sdist, wheel


def environment(folder: Path, wheel: Path, *locks: Path) -> Path:
    """Return the interpreter of a new environment with a wheel and exactly what locks list, by default `[device]`'s."""
    python = folder / "bin" / "python"
    uv("venv", "--python", sys.executable, folder)
    uv("pip", "sync", "--python", python, "--require-hashes", *(locks or (DEVICE_LOCK,)))
    uv("pip", "install", "--python", python, "--no-deps", wheel)
    return python
