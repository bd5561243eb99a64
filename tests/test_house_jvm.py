"""The JVM client's house keeps its rooms apart: which package may use which, and no circle between them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CLIENT = Path(__file__).resolve().parents[1] / "android_demo/client/src/main/java/mien/client"
BASE, FACADE = "base", "facade"
BASE_CLASSES = {"Clock", "ErrorCode", "KnownFaceException", "MienException"}
"""What lies below every room, in the root package; the rest of that package is the facade, above every room."""

ROOMS = {
    BASE: set(),
    "wire": {BASE},
    "store": {BASE, "wire"},
    "log": {BASE, "wire"},
    "secagg": {BASE, "wire"},
    "join": {BASE, "wire", "store", "log", "secagg"},
    "model": {BASE, "wire", "store"},
    "train": {BASE, "wire", "store", "model"},
    "vision": {BASE, "wire", "model", "train"},
    "enrol": {BASE, "wire", "store", "vision"},
    "people": {BASE, "wire", "store", "model", "train"},
    "tasks": {BASE, "wire", "secagg", "model", "train"},
    "server": {BASE, "wire", "store", "join", "model"},
    "rounds": {BASE, "wire", "store", "log", "secagg", "join", "model", "train", "people", "tasks", "server"},
    FACADE: {BASE, "wire", "store", "log", "secagg", "join", "model", "train", "enrol", "people", "tasks", "server"}
    | {"rounds"},
}
"""The rooms from the ground up, each with those that it uses."""

NOT_CODE = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|^package [^;]*;""", re.DOTALL | re.MULTILINE
)
"""Comments, texts, characters and the package's own name."""

NAMED = re.compile(r"\bmien\.client\.(?:([a-z]\w*)\.)?(\w+|\*)")
"""A class of the client by its full name, in an import or in the code."""

FILES = sorted(path for path in CLIENT.rglob("*.java") if path.stem != "package-info")
ROOT_CLASSES = {path.stem for path in FILES if path.parent == CLIENT}


def room(package: str, name: str) -> str:
    """Return the room of a class; `package` is empty for the root package."""
    return package or (BASE if name in BASE_CLASSES else FACADE)


def used_rooms(text: str, own: str) -> set[str]:
    """Return the other rooms whose classes a Java file of the room `own` names."""
    code = NOT_CODE.sub(" ", text)
    rooms = {room(package, name) for package, name in NAMED.findall(code)}
    if own in (BASE, FACADE):  # one package, whose classes need no import between them
        rooms |= {room("", name) for name in re.findall(r"\b\w+", code) if name in ROOT_CLASSES}
    return rooms - {own}


def of(path: Path) -> str:
    """Return the room of a file."""
    return room("" if path.parent == CLIENT else path.parent.relative_to(CLIENT).as_posix(), path.stem)


def test_a_room_uses_only_what_it_may() -> None:
    assert BASE_CLASSES <= ROOT_CLASSES
    assert {of(path) for path in FILES} == set(ROOMS), "is the table of rooms stale?"
    broken = [
        f"{path.relative_to(CLIENT)} ({of(path)}) uses {other}"
        for path in FILES
        for other in used_rooms(path.read_text(encoding="utf-8"), of(path)) - ROOMS[of(path)]
    ]
    assert not broken


def test_the_table_allows_nothing_that_is_not_used() -> None:
    used: dict[str, set[str]] = {name: set() for name in ROOMS}
    for path in FILES:
        used[of(path)] |= used_rooms(path.read_text(encoding="utf-8"), of(path))
    unused = {name: sorted(allowed - used[name]) for name, allowed in ROOMS.items() if allowed - used[name]}
    assert not unused


def test_the_table_has_no_circle() -> None:
    below: set[str] = set()
    for name, allowed in ROOMS.items():
        assert allowed <= below, f"{name} uses {sorted(allowed - below)}, which is not below it"
        below.add(name)


@pytest.mark.parametrize(
    ("code", "own", "rooms"),
    [
        ("import mien.client.people.Gallery;", "store", {"people"}),
        ("import static mien.client.wire.Bytes.hex;", "people", {"wire"}),
        ("import mien.client.tasks.*;", "people", {"tasks"}),
        ("byte[] id = mien.client.wire.Bytes.unhex(text);", "secagg", {"wire"}),
        ("import mien.client.Clock;\nimport mien.client.Device;", "store", {BASE, FACADE}),
        ("import mien.client.Clock;\nimport mien.client.people.Gallery;", "people", {BASE}),
        ("import mien.client.*;", "store", {FACADE}),
        ('char quote = \'"\'; // "\nDevice open() { return null; } // "', BASE, {FACADE}),
        ("Device open(Clock clock);", BASE, {FACADE}),
        ("Device open(Clock clock);", FACADE, {BASE}),
        ('package mien.client.store;\n/** {@link mien.client.Device} */ // Device\n"mien.client.Edge"', "store", set()),
    ],
)
def test_uses_are_found(code: str, own: str, rooms: set[str]) -> None:
    assert used_rooms(code, own) == rooms


def test_every_file_says_where_it_lies() -> None:
    """A file's room is read from its folder, so its package has to be the same."""
    for path in FILES:
        package = re.search(r"^package ([\w.]+);", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert package, path
        assert package[1] == ".".join(("mien", "client", *path.parent.relative_to(CLIENT).parts)), path


SAID = re.compile(r"^ +(?:@\w.*|\*/|/\*\*.*\*/)$")
METHOD = re.compile(r"^ +public (?!(?:static |final |abstract )*(?:class|interface|enum)\b)[^=;]*?\w+\(")


def unsaid(text: str) -> list[str]:
    """Return the public methods and constructors of a Java file that neither override nor say what they do."""
    lines, found = text.splitlines(), []
    for number, line in enumerate(lines):
        if METHOD.match(line):
            above = number - 1
            while lines[above].lstrip().startswith("@") and lines[above].strip() != "@Override":
                above -= 1
            if not SAID.match(lines[above]):
                found.append(line.strip())
    return found


def test_every_public_method_says_what_it_does() -> None:
    """Whoever builds an app on the client reads nothing else; doclint, in the build, checks how it is said."""
    assert not {str(path.relative_to(CLIENT)): each for path in FILES if (each := unsaid(path.read_text("utf-8")))}


def test_what_is_unsaid_is_found() -> None:
    said = 'class A {\n    /** Says. */\n    @SuppressWarnings("x")\n    public int b() {\n'
    said += "    @Override\n    public int c() {\n"
    assert not unsaid(said)
    assert unsaid(
        said + "    }\n\n    public A(int d) {\n    public static <T> T e(\n    public final int f = g();"
    ) == [
        "public A(int d) {",
        "public static <T> T e(",
    ]


def test_the_readme_counts_the_clients_tests() -> None:
    """How many pass on ARM64: all that there are."""
    demo = CLIENT.parents[5]
    tests = sum(
        len(re.findall(r"^\s*@Test\b", path.read_text(encoding="utf-8"), re.MULTILINE))
        for path in (demo / "client" / "src" / "test").rglob("*.java")
    )
    assert f"All {tests} tests pass" in (demo / "README.md").read_text(encoding="utf-8")
