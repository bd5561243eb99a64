"""Documentation that cannot drift: every place that a page names exists, every command that it shows is real."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer.main

import coordinator.cli
import coordinator.registrar.cli
import device_sdk.cli
import simulation.cli
from mien.errors import MienError

ROOT = Path(__file__).resolve().parents[2]
PLACE = re.compile(r"`([\w/]+\.py):([\w.]+)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
PROGRAMS = {
    "mien-registrar": coordinator.registrar.cli.app,
    "mien-coordinator": coordinator.cli.app,
    "mien-device": device_sdk.cli.app,
    "mien-sim": simulation.cli.app,
}
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("simulation/**/*.md")])


def definitions(path: Path) -> set[str]:
    """Return the names of a module's functions, classes and methods (as Class.method)."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names.update(
                f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)
            )
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_place_and_link_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, name in PLACE.findall(text):
        assert (ROOT / file).is_file(), f"{page.name} names {file}"
        assert name in definitions(ROOT / file), f"{page.name} names {file}:{name}"
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tour_walks_both_paths() -> None:
    places = PLACE.findall((ROOT / "docs/tour.md").read_text(encoding="utf-8"))
    files = {file for file, _ in places}
    assert len(places) >= 15
    for room in ("device_sdk/faces/", "device_sdk/", "mien/methods/", "coordinator/rounds/", "mien/contribution.py"):
        assert any(file.startswith(room) for file in files), room


def commands(program: str) -> set[str]:
    """Return every verb of a program, groups joined by a space."""

    def walk(command: object, prefix: str) -> set[str]:
        children = getattr(command, "commands", None)
        if not children:
            return {prefix}
        return {verb for name, child in children.items() for verb in walk(child, f"{prefix} {name}".strip())}

    return walk(typer.main.get_command(PROGRAMS[program]), "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_verb_is_documented(program: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = [verb for verb in commands(program) if f"{program} {verb}" not in text]
    assert not missing


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_documented_command_exists(program: str) -> None:
    known = commands(program)
    for page in PAGES:
        for line in re.findall(rf"^\s*(?:\$ )?{program} ([a-z -]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            words = line.split()
            verbs = {" ".join(words[:n]) for n in (1, 2)}
            assert verbs & known or line.startswith("-"), f"{page.name}: {program} {line}"


def test_every_error_is_documented() -> None:
    def leaves(cls: type[MienError]) -> set[type[MienError]]:
        children = cls.__subclasses__()
        return {cls} if not children else {leaf for child in children for leaf in leaves(child)}

    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    missing = [cls.code for cls in leaves(MienError) if f"`{cls.code}`" not in text]
    assert not missing
