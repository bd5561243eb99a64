"""The house keeps its rooms apart: who may import whom, and what may never be imported."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

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


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names that a file imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def clocks_read(path: Path) -> set[str]:
    """Return the methods of `datetime` and `date` classes that a file calls to learn the time."""
    calls = (node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute) and call.attr in CLOCKS}


def uses(names: frozenset[str], package: str) -> bool:
    """Return whether any of the dotted names is `package` or lies in it."""
    return any(name == package or name.startswith(package + ".") for name in names)


FORBIDDEN = {
    "mien": ("coordinator", "device_sdk", "simulation"),
    "coordinator": ("device_sdk", "simulation", "torch"),
    "device_sdk": ("coordinator", "simulation"),
    "simulation": (),
}


def room(path: Path) -> str:
    """Return the room of a module: its folder below the package, or itself where it stands loose."""
    below = path.relative_to(ROOT).parts[1:]
    return below[0].removesuffix(".py")


def room_imports(package: str) -> Mapping[str, set[str]]:
    """Return which rooms each room of a package imports, wherever in a file the import stands."""
    rooms = {name: room(path) for name, path in modules(package)}
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules(package):
        found[rooms[name]] |= {rooms[other] for other in imports(path) if other in rooms} - {rooms[name]}
    return found


ROOMS: Final[Mapping[str, Mapping[str, str]]] = {
    "mien": {
        "_door": "",
        "errors": "",
        "format": "",
        "template_protection": "",
        "layout": "errors",
        "log": "errors",
        "objectives": "errors",
        "records": "errors",
        "shell": "errors records",
        "contribution": "errors layout",
        "specs": "errors records",
        "evaluation": "_door contribution errors layout records specs",
        "protocol": "contribution errors format layout log specs",
        "dp": "errors log protocol specs",
        "models": "errors layout protocol records specs",
        "secagg": "_door contribution dp errors log protocol records specs",
        "backbones": "errors layout models specs",
        "methods": "_door contribution errors evaluation layout protocol records secagg specs",
        "__init__": "_door contribution errors layout methods specs",
        "rounds": "contribution dp errors evaluation format layout log methods protocol records secagg specs",
    },
    "coordinator": {
        "keys": "",
        "migrations": "",
        "store": "",
        "home": "keys store",
        "operator": "keys",
        "rounds": "store",
        "release": "home rounds store",
        "service": "keys operator release rounds store",
        "dashboard": "home keys operator service store",
        "registrar": "home keys service store",
        "replicas": "home keys rounds service store",
        "serve": "home keys operator release replicas rounds service store",
        "__init__": "home keys operator registrar serve",
        "commands": "__init__ dashboard home keys operator registrar release replicas serve service store",
    },
    "device_sdk": {
        "faces": "",
        "runtimes": "",
        "status": "",
        "storage": "",
        "server": "storage",
        "models": "runtimes server storage",
        "export": "faces models runtimes",
        "people": "faces models storage",
        "rounds": "faces models people server storage",
        "config": "faces people rounds runtimes",
        "device": "config faces models people rounds runtimes server status storage",
        "__init__": "device faces people rounds server status",
        "program": "config device faces models people rounds runtimes server status storage",
    },
    "simulation": {
        "centralised": "",
        "engines": "",
        "synthetic": "",
        "testing": "",
        "bench": "engines",
        "faces": "centralised engines synthetic",
        "runs": "centralised engines faces",
        "__init__": "engines runs",
        "fleet": "engines faces runs",
        "pages": "runs",
        "demo": "engines faces pages synthetic",
        "phones": "demo faces runs synthetic",
        "program": "bench demo faces fleet pages phones runs synthetic",
        "__main__": "program",
        "papers": "centralised demo engines faces program runs synthetic",
    },
}
"""Which rooms each room of a package may import, from the ground up; a new arrow is a decision."""

MOST_LOOSE: Final = 8
"""Modules that may stand in a package beside its rooms."""

TWICE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("Assignment", "Entry", "Identity", "Kind", "Left", "Masked", "Opening", "Shared"),
        "secure aggregation speaks of bytes where the programs speak of tasks and people",
    ),
    **dict.fromkeys(
        ("Addends", "Attempt", "Cohort", "Engine", "Fleet", "Registry", "RoundRecord", "Step", "Work", "Worker"),
        "the server's, and its stand-in or namesake in the simulator or the protocol",
    ),
    **dict.fromkeys(
        (
            "Column",
            "Choice",
            "Estimate",
            "Faces",
            "Failure",
            "Failures",
            "Options",
            "Person",
            "Phones",
            "Plan",
            "Point",
            "Population",
            "Reader",
            "Row",
            "Setting",
            "Table",
            "Trainer",
            "Variant",
        ),
        "a plain noun of a program's own, never imported by another one's code",
    ),
    **dict.fromkeys(
        ("Graph", "KnownModel", "Manifest", "Model", "Tail"), "the model on a phone, on disk, or in a simulator"
    ),
    **dict.fromkeys(("Judged", "Measured", "Monitors", "Summary"), "what is measured, and how the dashboard shows it"),
    **dict.fromkeys(("Device", "DeviceRecord", "Stage", "Store"), "each program has its own"),
    **dict.fromkeys(("Policy", "Profile", "Role"), "attestation, certificates, secure aggregation and fleets"),
    **dict.fromkeys(("Event", "Spent", "Trained", "RoundCost", "Part"), "one of training and one of its account"),
    "Compared": "gates' measurements beside another model's, and two runs' figures",
    "Pulse": "a loop's and a blocking call's",
}
"""Names of classes that two modules have, and why; a name that is there once is struck."""


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package: str) -> None:
    found = modules(package)
    assert len(found) > 1, f"{package} has no modules: is the list of packages stale?"
    broken = [
        f"{name} imports {other}" for name, path in found for other in FORBIDDEN[package] if uses(imports(path), other)
    ]
    assert not broken


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_import_only_what_the_table_says(package: str) -> None:
    """A new arrow between rooms is a decision: it needs a line here, and may close no circle."""
    there, allowed = room_imports(package), ROOMS[package]
    assert set(allowed) == {room(path) for _, path in modules(package)}, "the table names other rooms than there are"
    broken = [
        f"{name} imports {other}" for name, others in there.items() for other in others - set(allowed[name].split())
    ]
    assert not broken
    stale = [
        f"{name} imports no {other}" for name, each in allowed.items() for other in set(each.split()) - there[name]
    ]
    assert not stale


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_form_no_circle_and_import_nothing_upward(package: str) -> None:
    """The table lists rooms from the ground up: each imports rooms above its own line only."""
    order = list(ROOMS[package])
    tuple(graphlib.TopologicalSorter(room_imports(package)).static_order())  # raises CycleError
    upward = [
        f"{name} imports {other}"
        for name, others in room_imports(package).items()
        for other in others
        if order.index(other) > order.index(name)
    ]
    assert not upward


@pytest.mark.parametrize("package", PACKAGES)
def test_few_modules_stand_loose(package: str) -> None:
    loose = [path.name for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]
    assert len(loose) <= MOST_LOOSE, f"{sorted(loose)}: give them a room"


def test_a_class_name_means_one_thing_or_has_a_reason() -> None:
    """Private names belong to their module; generated stubs are the wire's."""
    places: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for name, path in modules(package):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(name)
    twice = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in TWICE} == {}
    assert set(TWICE) <= set(twice), "these names are there once: strike them from the list"


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
