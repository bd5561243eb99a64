"""Write the table of methods in android_demo/README.md: what a phone of Python's and one of the JVM can train in.

Python's half comes from the registry of methods, the JVM's from its registry's source, the evidence from the tests.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mien.methods import METHODS
from mien.methods.base import Property
from scripts.write_settings_tables import with_tables

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "android_demo" / "README.md"
JAVA: Final = ROOT / "android_demo" / "client" / "src" / "main" / "java" / "mien" / "client" / "tasks"
HEADING: Final = "## Methods, in Python and on the JVM"
LEFT_OUT: Final = {
    "fedaws": "all of it: it shows the server each phone's template, which the app's first screen rules out",
    "fixed_embedding": "all of it: a baseline to compare with, which no fleet needs",
    "fedface": "its exact form, which shows the server each phone's template; steps after a round by a moment",
    "fedgc": "its exact form, which shows the server class vectors; steps after a round by a moment",
    "fedfr_uda": "a labelled source, which no phone of one household has",
    "pfm_fv": "judging as a validator, which needs faces of four people who train nowhere in the task",
}
"""What the JVM's half refuses and Python's does; everything else it does with Python's numbers."""

_REGISTRY = re.compile(r"DeviceHalf\[\] all = \{(.*?)\};", re.DOTALL)
_SEVERAL = re.compile(r"boolean isForSeveral\(\) \{\s*return false;")


def jvm_methods() -> dict[str, bool]:
    """Return the methods of the JVM's registry, and whether each takes several people of one phone."""
    listed = _REGISTRY.search((JAVA / "Methods.java").read_text(encoding="utf-8"))
    if listed is None:
        raise SystemExit("Methods.java lists no device halves where they were; mend scripts/write_method_parity.py")
    found = {}
    for kind in re.findall(r"new (\w+)\(\)", listed[1]):
        source = (JAVA / f"{kind}.java").read_text(encoding="utf-8")
        name = re.search(r'super\("(\w+)"', source)
        if name is None:
            raise SystemExit(f"{kind}.java does not say which method it is")
        found[name[1]] = _SEVERAL.search(source) is None
    return found


def _links(folder: str, pattern: str, method: str) -> str:
    """Return links to a folder's files that name a method, in quotes as Python's and JSON's are."""
    named = re.compile(rf'"{method}\\?"')
    files = [path for path in sorted((ROOT / folder).glob(pattern)) if named.search(path.read_text(encoding="utf-8"))]
    return ", ".join(f"[{path.stem.removeprefix('test_')}](../{folder}/{path.name})" for path in files) or "–"


def python_methods() -> dict[str, bool]:
    """Return the methods of Python's registry, and whether each takes several people of one phone."""
    several = {Property.SEVERAL_PEOPLE, Property.UNLABELLED}
    return {name: bool(several & method.properties) for name, method in METHODS.items()}


def table() -> str:
    """Return the table."""
    people = {True: "several people", False: "one person"}
    jvm, python = jvm_methods(), python_methods()
    head = ("method", "source", "Python", "JVM", "not on the JVM", "golden vectors", "tests of the JVM's phones")
    rows = [head, ("---",) * len(head)]
    for name, method in METHODS.items():
        rows.append(
            (
                f"`{name}`",
                method.source,
                people[python[name]],
                people[jvm[name]] if name in jvm else "no",
                LEFT_OUT.get(name, "–"),
                _links("tests/golden/client", "*.json", name) if name in jvm else "–",
                _links("tests/android", "test_*.py", name) if name in jvm else "–",
            )
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def written(page: str) -> str:
    """Return the page with its table as it should be."""
    return with_tables(page, {HEADING: table()}, PAGE.name)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
