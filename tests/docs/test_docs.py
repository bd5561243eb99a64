"""Documentation that cannot drift: every place that a page names exists, every command that it shows is real."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main

import coordinator.commands.cli
import coordinator.commands.registrar_cli
import device_sdk.program.cli
import simulation.program.cli
from coordinator.home.config import CoordinatorConfig
from coordinator.registrar.config import RegistrarConfig
from device_sdk.config import DeviceConfig
from mien.errors import MienError
from mien.evaluation.rollout_spec import RollOutSpec
from mien.methods import METHODS
from mien.specs import TaskSpec

ROOT = Path(__file__).resolve().parents[2]
PLACE = re.compile(r"`([\w/]+\.py):([\w.]+)`")
JAVA_PLACE = re.compile(r"`([\w/]+\.java):(\w+)`")
JAVA = ROOT / "android_demo/client/src/main/java/mien/client"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
PROGRAMS = {
    "mien-registrar": coordinator.commands.registrar_cli.app,
    "mien-coordinator": coordinator.commands.cli.app,
    "mien-device": device_sdk.program.cli.app,
    "mien-sim": simulation.program.cli.app,
}
PAGES = sorted(
    page for under in ("", "docs/**/", "simulation/**/", "android_demo/") for page in ROOT.glob(f"{under}*.md")
)


DEFINITION = re.compile(r"^(?P<inside>    )?(?:async )?(?:def|class) (?P<name>\w+)", re.MULTILINE)


def definitions(path: Path) -> set[str]:
    """Return the names of a module's functions, classes and methods (as Class.method).

    Not by `ast`: Python 3.11 may fail to parse while another thread, a server's that tests left, prints a traceback.
    """
    names, around = set[str](), ""
    for found in DEFINITION.finditer(path.read_text(encoding="utf-8")):
        if found["inside"]:
            names.add(f"{around}.{found['name']}")
        else:
            around = found["name"]
            names.add(around)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_place_and_link_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, name in PLACE.findall(text):
        assert (ROOT / file).is_file(), f"{page.name} names {file}"
        assert name in definitions(ROOT / file), f"{page.name} names {file}:{name}"
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_adversary_has_a_test_that_exists() -> None:
    """Its places are looked up by the test above; here each row has to name one, and the tests are under tests/."""
    text = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
    table = text.partition("## Adversaries")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert rows[0] == ["adversary", "asset", "what holds", "test", "what does not"]
    assert len(rows) > 30
    for adversary, asset, holds, tests, _ in rows[2:]:
        found = PLACE.findall(tests)
        assert found, f"no test: {adversary}"
        assert all(file.startswith("tests/") and name.rpartition(".")[2].startswith("test_") for file, name in found)
        assert asset, adversary
        assert holds, adversary


def java_definitions(path: Path) -> set[str]:
    """Return the names of the methods of a Java file's outermost class: what stands one level in, before a bracket."""
    return set(re.findall(r"^    (?=\w)(?:[\w<>\[\],.? ]+ )?(\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_tour_walks_both_paths_on_the_jvm_too() -> None:
    places = JAVA_PLACE.findall((ROOT / "docs/tour.md").read_text(encoding="utf-8"))
    for file, name in places:
        assert (JAVA / file).is_file(), f"the tour names {file}"
        assert name in java_definitions(JAVA / file), f"the tour names {file}:{name}"
    rooms = {file.rpartition("/")[0] for file, _ in places}
    assert {"", "vision", "enrol", "people", "tasks", "rounds", "server", "train", "model", "secagg", "store"} <= rooms


def test_the_tour_walks_both_paths() -> None:
    places = PLACE.findall((ROOT / "docs/tour.md").read_text(encoding="utf-8"))
    files = {file for file, _ in places}
    assert len(places) >= 15
    for room in ("device_sdk/faces/", "device_sdk/", "mien/methods/", "coordinator/rounds/", "mien/contribution.py"):
        assert any(file.startswith(room) for file in files), room


def test_every_picture_is_on_a_page() -> None:
    shown = {(page.parent / target).resolve() for page in PAGES for target in LINK.findall(page.read_text("utf-8"))}
    assert not set((ROOT / "docs/images").iterdir()) - shown


@functools.cache
def verbs(program: str) -> dict[str, Any]:
    """Return every command of a program by its words, groups joined by a space."""

    def walk(command: Any, prefix: str) -> dict[str, Any]:
        children = getattr(command, "commands", None)
        if not children:
            return {prefix: command}
        return {
            verb: leaf for name, child in children.items() for verb, leaf in walk(child, f"{prefix} {name}").items()
        }

    return {verb.strip(): leaf for verb, leaf in walk(typer.main.get_command(PROGRAMS[program]), "").items()}


def commands(program: str) -> set[str]:
    """Return the words of every command of a program."""
    return set(verbs(program))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_verb_is_documented(program: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = [verb for verb in commands(program) if f"{program} {verb}" not in text]
    assert not missing


NAMED = re.compile(rf"(?:^|(?<=[^\w.-]))({'|'.join(PROGRAMS)}) +(?=[a-z-])([^`\n]*)", re.MULTILINE)
END_OF_COMMAND = re.compile(r"[;|)]|[.:,](?:\s|$)|&&|mien-")
SPEAKING = [
    *PAGES,
    *(
        path
        for under in ("coordinator", "device_sdk", "mien", "simulation", "examples", "scripts", "benchmarks")
        for path in sorted((ROOT / under).rglob("*.py"))
    ),
    *(path for path in sorted((ROOT / "deploy").rglob("*")) if path.is_file() and path.suffix != ".lock"),
    ROOT / "Makefile",
    ROOT / "tests/integration/try_cluster.py",
]
"""Files that tell people, or machines, to run a command: pages, help texts, messages, what helm prints, units, pods."""


def texts(path: Path) -> Iterator[str]:
    """Yield what a file says; of a module its strings, without the values that are put in."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        # A pod's command is a list.
        yield re.sub(r'["\[\],]+ ?', " ", text) if path.suffix in (".yaml", ".yml") else text
        return
    module = ast.parse(text)
    formatted = [node for node in ast.walk(module) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in formatted for part in node.values}
    for node in formatted:
        yield "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def wrong_commands(text: str) -> Iterator[str]:
    """Yield commands of Mien's programs in a text of which no verb, or no option, is one of theirs."""
    for program, rest in NAMED.findall(text.replace("\\\n", " ")):
        command = END_OF_COMMAND.split(rest)[0]
        words, known = command.split(), verbs(program)
        if not words or words[0].startswith("-"):
            continue
        verb = next((v for n in (3, 2, 1) if (v := " ".join(words[:n])) in known), None)
        options = set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", command)) - {"--help"}
        if verb is None:
            is_group = any(name.startswith(f"{words[0]} ") for name in known)
            if not is_group or options or re.match(r"[a-z]{2}", " ".join(words[1:])):
                yield f"{program} {command}"
        elif options - {name for each in known[verb].params for name in (*each.opts, *each.secondary_opts)}:
            yield f"{program} {command}"


def test_every_command_that_is_named_exists() -> None:
    wrong = {
        (path.relative_to(ROOT).as_posix(), each)
        for path in SPEAKING
        for text in texts(path)
        for each in wrong_commands(text)
    }
    assert wrong <= set(NO_COMMANDS)


NO_COMMANDS = {
    ("docs/decisions/0074-a-phone-without-a-fleet.md", "mien-device init"): "what was rejected",
    ("device_sdk/program/words.py", "mien-device is changing"): "a sentence about the program",
}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("run mien-coordinator task submitt x.toml", "mien-coordinator task submitt x.toml"),
        ("`mien-device enrol Ada`", "mien-device enrol Ada"),
        ("mien-device enroll Ada photos --no-consents && true", "mien-device enroll Ada photos --no-consents "),
        ("mien-registrar init \\\n  --adress r.example:7440", "mien-registrar init    --adress r.example:7440"),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, wrong: str) -> None:
    assert list(wrong_commands(text)) == [wrong]


def test_every_error_is_documented() -> None:
    def leaves(cls: type[MienError]) -> set[type[MienError]]:
        children = cls.__subclasses__()
        return {cls} if not children else {leaf for child in children for leaf in leaves(child)}

    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    missing = [cls.code for cls in leaves(MienError) if f"`{cls.code}`" not in text]
    assert not missing


COMMAND = re.compile(rf"^\s*(?:\$ )?((?:{'|'.join(PROGRAMS)}) .+)$|`((?:{'|'.join(PROGRAMS)})\s[^`]+)`", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_documented_option_exists(page: Path) -> None:
    for line, inline in COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", "")):
        text = (line or inline).partition("#")[0]
        if text.count("'") % 2 or text.count('"') % 2:  # prose, or a command that a line break cuts
            continue
        program, *words = shlex.split(text)
        known = verbs(program)
        verb = next((v for n in (3, 2, 1) if (v := " ".join(words[:n])) in known), None)
        given = [word.partition("=")[0] for word in words if word.startswith("--") and word != "--help"]
        if verb is None:
            assert not given, f"{page.name}: {text}"
            continue
        options = {name for each in known[verb].params for name in (*each.opts, *each.secondary_opts)}
        assert set(given) <= options, f"{page.name}: {text}"


ROW = re.compile(r"^\| `([\w.]+)` \| `([^`]*)` \|", re.MULTILINE)
REFERENCES = {
    ("operator/tasks.md", "### Task reference"): TaskSpec,
    ("operator/models.md", "### Roll-out reference"): RollOutSpec,
    ("operator/settings.md", "## Coordinator settings"): CoordinatorConfig,
    ("operator/settings.md", "## Registrar settings"): RegistrarConfig,
    ("device.md", "## Settings"): DeviceConfig,
    **{("operator/tasks.md", f"### Options of `{name}`"): method.options for name, method in METHODS.items()},
}
"""Where each record that people write in TOML is described, field by field, with its default."""


def defaults(record: type[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every field of a record by its dotted name, with its default as TOML writes it."""
    for field in dataclasses.fields(record):
        name = prefix + field.name
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            yield name, "required"
            continue
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if dataclasses.is_dataclass(value):
            yield from defaults(type(value), f"{name}.")
        else:
            yield name, written(value)


def written(value: object) -> str:
    """Return a value as TOML writes it; `unset` for None, which TOML cannot write."""
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return json.dumps(dict(value) if isinstance(value, Mapping) else value)


@pytest.mark.parametrize(("page", "heading"), REFERENCES, ids=lambda part: part.strip("# "))
def test_every_field_is_documented_with_its_default(page: str, heading: str) -> None:
    _, found, rest = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")
    assert found, f"{page} has no {heading}"
    section = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    assert dict(ROW.findall(section)) == dict(defaults(REFERENCES[page, heading]))
