"""Groups of people to measure apart: a CSV that says who is in which, or folders of folders group/person/pictures.

::

    person,age,sex              or    picture,age
    ada,34,f                          ada/1.jpg,34
    bob,0-12,                         bob/1.jpg,0-12

A column `person` or `picture` names whom a row is about; every other column is an attribute. An empty cell, and whoever
is in no row, counts as not stated. A group is of people: a picture's row says it of its person. Ages in whole years
become `AGES`.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from mien.errors import ConfigError, EmptyFolderError, NotFoundError
from mien.shell.files import read_limited
from mien.specs import MAX_GROUP_NAME
from simulation.faces.datasets import People, find_people

AGES: Final = ((0, "0-12"), (13, "13-19"), (20, "20-39"), (40, "40-59"), (60, "60+"))
"""Bands of age in whole years, each from its number on; in between their borders recognisers differ most."""
MAX_BYTES: Final = 1 << 26
MAX_ATTRIBUTES: Final = 8
MAX_GROUPS: Final = 40
_KEYS: Final = ("person", "picture")


@dataclass(frozen=True)
class Groups:
    """Whose people are in which group: attribute, group, their names; `sha256` is that of the file, empty for folders.

    Attributes are in the file's order, groups and names sorted.
    """

    members: Mapping[str, Mapping[str, tuple[str, ...]]]
    sha256: str = ""

    def not_stated(self, people: People) -> dict[str, int]:
        """Return how many people are in no group, for each attribute."""
        return {name: len(people) - sum(map(len, groups.values())) for name, groups in self.members.items()}


def folders_of_groups(folder: Path) -> tuple[dict[str, list[Path]], Groups]:
    """Return the people of folders `folder`/group/person/pictures, and their groups, of the one attribute `group`.

    Raises as `find_people`, and ConfigError where a person is in two groups or a group's name is too long.
    """
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}; name one that holds group/person/pictures")
    people: dict[str, list[Path]] = {}
    groups: dict[str, tuple[str, ...]] = {}
    for child in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        try:
            found = find_people(child)
        except EmptyFolderError as error:
            raise EmptyFolderError(
                f"{child} holds no folder of a person's pictures; groups are folders group/person/pictures"
            ) from error
        if twice := sorted(found.keys() & people.keys()):
            other = next(name for name, members in groups.items() if twice[0] in members)
            raise ConfigError(
                f"{twice[0]} is in two groups, {other} and {child.name}; give each person one, or rename one of them "
                "if they are two people"
            )
        people |= found
        groups[_checked(child.name)] = tuple(sorted(found))
    if not groups:
        raise EmptyFolderError(f"{folder} holds no folder; groups are folders group/person/pictures")
    _check_number("group", groups)
    return people, Groups({"group": groups})


def read_groups(file: Path, people: People) -> Groups:
    """Return the groups of people in a CSV.

    Raises ConfigError for a file that cannot be understood and for a person in two groups of one attribute,
    NotFoundError for a person or picture that is not among `people`.
    """
    if not file.is_file():
        raise NotFoundError(
            f"there is no file {file}; --groups takes a CSV, or folders of folders group/person/pictures"
        )
    data = read_limited(file, MAX_BYTES, what=file.name)
    rows = _rows(data, file.name)
    _, header = next(rows, (0, []))
    key, attributes = _header(header, file.name)
    find = _finder(key, people, file.name)
    stated: dict[str, dict[str, str]] = {name: {} for name in attributes}
    for line, cells in rows:
        if len(cells) > len(header):
            raise ConfigError(f"{file.name}, line {line} has {len(cells)} cells for {len(header)} columns; correct it")
        row = dict(zip(header, cells, strict=False))
        person = find(row.get(key, ""), line)
        for attribute in attributes:
            if group := row.get(attribute, ""):
                _state(stated[attribute], attribute, person, _group_of(attribute, group), file.name)
    members = {name: _turned(found) for name, found in stated.items() if found}
    if not members:
        raise ConfigError(f"{file.name} states no group of anybody; fill in at least one column")
    for name, groups in members.items():
        _check_number(name, groups)
    return Groups(members, sha256(data).hexdigest())


def _rows(data: bytes, what: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that hold anything, each with its line's number, cells without outer blanks in NFC."""
    try:
        text = data.decode("utf-8-sig")  # spreadsheets on Windows begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} is not UTF-8; save it as CSV in UTF-8") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            row = [unicodedata.normalize("NFC", cell).strip() for cell in cells]
            if any(row):
                yield reader.line_num, row
    except csv.Error as error:
        raise ConfigError(f"{what}, line {reader.line_num} is no CSV ({error}); correct it") from error


def _header(header: list[str], what: str) -> tuple[str, list[str]]:
    """Return the column that says whom a row is about, and the attributes; `header` gets the key's plain name."""
    header[:] = [name.casefold() if name.casefold() in _KEYS else name for name in header]
    keys = [name for name in header if name in _KEYS]
    if len(keys) != 1:
        found = ", ".join(filter(None, header)) or "none"
        hint = "; separate columns by commas" if len(header) == 1 and ";" in header[0] else ""
        raise ConfigError(f"{what} needs one column 'person' or 'picture', its columns are {found[:200]}{hint}")
    attributes = [name for name in header if name != keys[0]]
    if not attributes:
        raise ConfigError(f"{what} has no column besides {keys[0]!r}; add one for each attribute, such as age")
    if "" in attributes or len(set(attributes)) < len(attributes) or len(attributes) > MAX_ATTRIBUTES:
        raise ConfigError(f"{what} needs 1 to {MAX_ATTRIBUTES} attributes, each named once in the first line")
    return keys[0], [_checked(name) for name in attributes]


def _finder(key: str, people: People, what: str) -> Callable[[str, int], str]:
    """Return who a cell of the key's column names."""
    if key == "person":
        known = {_plain(name): name for name in people}
        written, remedy = "a person", "people are named as their folders"
    else:
        known = {_plain(f"{name}/{path.name}"): name for name, paths in people.items() for path in paths}
        written, remedy = "a picture", "pictures are named person/picture.jpg, as they lie in the folder"

    def find(cell: str, line: int) -> str:
        person = known.get(_plain(cell.replace("\\", "/").removeprefix("./")))
        if person is None:
            raise NotFoundError(f"{what}, line {line} names {written} that is not there, {cell[:80]!r}; {remedy}")
        return person

    return find


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).strip()


def _state(stated: dict[str, str], attribute: str, person: str, group: str, what: str) -> None:
    before = stated.setdefault(person, group)
    if before != group:
        raise ConfigError(
            f"{what}: {person} is in two groups of {attribute}, {before} and {group}; give each person one, or leave "
            "pictures out"
        )


def _group_of(attribute: str, cell: str) -> str:
    """Return the group that a cell names: an age in whole years is one of a band."""
    if attribute.casefold() == "age" and cell.isascii() and cell.isdigit() and len(cell) <= 3:
        return next(band for start, band in reversed(AGES) if int(cell) >= start)
    return _checked(cell)


def _checked(name: str) -> str:
    if len(name) > MAX_GROUP_NAME or not name.isprintable():
        raise ConfigError(f"the group {name[:20]!r}… is too long or unprintable; at most {MAX_GROUP_NAME} characters")
    return name


def _turned(stated: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {
        group: tuple(sorted(person for person, own in stated.items() if own == group))
        for group in sorted(set(stated.values()))
    }


def _check_number(attribute: str, groups: Mapping[str, object]) -> None:
    if len(groups) > MAX_GROUPS:
        raise ConfigError(
            f"{attribute} has {len(groups)} groups; at most {MAX_GROUPS} can be told apart: put people into larger ones"
        )
