"""The house keeps its rooms apart: who may import whom, and what may never be imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("mien", "coordinator", "device_sdk", "simulation")
SHELL_MODULES = {"socket", "ssl", "time", "pathlib", "subprocess", "tempfile", "sqlite3", "asyncio"}
CLOCKS = {"now", "utcnow", "today"}
OVERWRITTEN = re.compile(r"""\b([a-z]\w*)\[[^]]*\] \+ b(["']).*?\2 \+ \1\[""")
"""A constant between two slices of one name."""

TORCH_ROOMS = ("mien.backbones", "mien.objectives")
TORCH_RUNTIME = tuple(f"device_sdk.runtimes.{name}" for name in ("torch_runtime", "objectives", "executorch_runtime"))
TORCH_EXPORT = tuple(
    f"device_sdk.export.{name}"
    for name in ("build", "decompositions", "executorch_rules", "onnx_graph", "pte_graph", "rewrites", "steps")
)


def modules(package: str) -> list[tuple[str, Path]]:
    """Return (dotted name, file) of every module of a package, generated stubs left out."""
    files = sorted(p for p in (ROOT / package).rglob("*.py") if "protocol/v1" not in p.as_posix())
    return [(".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), p) for p in files]


def imports(path: Path) -> set[str]:
    """Return the dotted names that a file imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def clocks_read(path: Path) -> set[str]:
    """Return the methods of `datetime` and `date` classes that a file calls to learn the time."""
    calls = (node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute) and call.attr in CLOCKS}


def uses(names: set[str], package: str) -> bool:
    """Return whether any of the dotted names is `package` or lies in it."""
    return any(name == package or name.startswith(package + ".") for name in names)


FORBIDDEN = {
    "mien": ("coordinator", "device_sdk", "simulation"),
    "coordinator": ("device_sdk", "simulation", "torch"),
    "device_sdk": ("coordinator", "simulation"),
    "simulation": (),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    found = modules(package)
    assert len(found) > 1, f"{package} has no modules: is the list of packages stale?"
    broken = [
        f"{name} imports {other}" for name, path in found for other in FORBIDDEN[package] if uses(imports(path), other)
    ]
    assert not broken


def test_the_core_is_pure() -> None:
    """`mien` opens no socket or file and reads no clock, except in mien.shell, which nothing else in it imports."""
    broken = []
    for name, path in modules("mien"):
        if name.startswith("mien.shell"):
            continue
        used = imports(path)
        broken += [f"{name} imports {module}" for module in SHELL_MODULES if uses(used, module)]
        broken += [f"{name} calls {call}()" for call in clocks_read(path)]
        if uses(used, "mien.shell"):
            broken.append(f"{name} imports mien.shell")
    assert not broken


def test_torch_stays_in_its_rooms() -> None:
    """Only backbones, heads, losses, the torch runtime, the exporter and the simulation import torch."""
    allowed = (*TORCH_ROOMS, *TORCH_RUNTIME, *TORCH_EXPORT)
    broken = [
        name
        for package in ("mien", "coordinator", "device_sdk")
        for name, path in modules(package)
        if uses(imports(path), "torch") and not name.startswith(allowed)
    ]
    assert not broken


def test_no_test_damages_data_by_a_constant_that_it_may_hold_already() -> None:
    """A random byte is any constant once in 256 runs: flip a bit of it, or end the line with `# fixed data`."""
    broken = [
        f"{path.relative_to(ROOT)}:{number} overwrites {found[1]}: flip a bit, as in bytes([{found[1]}[n] ^ 1])"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (found := OVERWRITTEN.search(line)) and not line.endswith("# fixed data")
    ]
    assert not broken


@pytest.mark.parametrize(
    "module",
    [
        "device_sdk",
        "device_sdk.program.cli",
        "coordinator.commands.cli",
        "coordinator.commands.registrar_cli",
        "mien.methods",
    ],
)
def test_programs_start_without_torch(module: str) -> None:
    """Importing a program's command line pulls in neither torch nor the other side."""
    code = (
        f"import sys, {module}; "
        "print(*[m for m in ('torch', 'onnxruntime', 'coordinator', 'device_sdk') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert set(loaded.split()) <= {module.partition(".")[0]}
