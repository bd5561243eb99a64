"""The error tree is complete: every leaf is drawn in the docstring, is in the table, and has a code of its own."""

from __future__ import annotations

import re

import grpc
import pytest

import mien.errors
from mien.errors import BY_CODE, TABLE, LowQualityError, MienError, NoFaceError, ReplayError


def tree(cls: type[MienError]) -> list[type[MienError]]:
    """Return all classes below `cls`."""
    return [below for child in cls.__subclasses__() for below in (child, *tree(child))]


# Only what the module defines: tests elsewhere may derive errors of their own.
DEFINED = [cls for cls in tree(MienError) if cls.__module__ == "mien.errors"]
LEAVES = [cls for cls in DEFINED if not any(other.__base__ is cls for other in DEFINED)]
GROUPS = [cls for cls in DEFINED if cls not in LEAVES]
DRAWN = re.compile(r"^((?:│   |    )*)[├└]── (\w+) +(\S.*)$")


def drawn() -> list[tuple[int, str, str]]:
    """Return (depth, class name, what it says) of every line of the tree in the module's docstring."""
    assert mien.errors.__doc__ is not None
    block = [line[4:] for line in mien.errors.__doc__.splitlines() if line.startswith("    ")]
    found = []
    for line in block:
        if match := DRAWN.match(line):
            found.append((len(match[1]) // 4, match[2], match[3]))
    return found


def test_the_tree_has_leaves() -> None:
    assert len(LEAVES) >= 25
    assert {cls.__base__ for cls in GROUPS} == {MienError}, "two levels below the root, not more"


def test_every_class_is_drawn_under_its_base() -> None:
    names = {cls.__name__ for cls in DEFINED}
    assert {name for _, name, _ in drawn()} == names
    base = ""
    for depth, name, _ in drawn():
        if depth == 0:
            base = name
            assert getattr(mien.errors, name).__base__ is MienError
        else:
            assert getattr(mien.errors, name).__base__.__name__ == base
    assert len(drawn()) == len(names), "a class is drawn twice"


def test_every_drawn_leaf_says_cause_and_what_to_do() -> None:
    """`cause: action`; the few whose group says it speak of the state instead."""
    leaves = {cls.__name__ for cls in LEAVES}
    silent = [name for _, name, text in drawn() if name in leaves and not re.search(r"\S: \S|; ", text)]
    assert not silent


def test_every_leaf_and_only_leaves_are_in_the_table() -> None:
    assert set(TABLE) == set(LEAVES)


def test_codes_are_snake_case_names_and_unique() -> None:
    assert NoFaceError.code == "no_face"
    assert ReplayError.code == "replay"
    assert len({cls.code for cls in DEFINED}) == len(DEFINED)
    for cls in DEFINED:
        assert cls.__name__ == "".join(part.title() for part in cls.code.split("_")) + "Error"


def test_codes_lead_back_to_their_class() -> None:
    assert {BY_CODE[cls.code] for cls in LEAVES} == set(LEAVES)
    assert len(BY_CODE) == len(TABLE)


def test_every_row_is_a_grpc_status_and_an_exit_code_of_its_own() -> None:
    codes = [row.exit_code for row in TABLE.values()]
    assert len(set(codes)) == len(codes)
    assert all(1 < code < 126 for code in codes), "0, 1 and those of shells and signals are taken"
    assert all(hasattr(grpc.StatusCode, row.grpc_status) for row in TABLE.values())
    assert not [row for row in TABLE.values() if row.grpc_status == "OK"]


@pytest.mark.parametrize("cls", LEAVES, ids=lambda c: c.__name__)
def test_an_error_carries_its_message_and_pause(cls: type[MienError]) -> None:
    error = cls("what happened; what to do", retry_after_s=2.5)
    assert str(error) == error.message == "what happened; what to do"
    assert error.retry_after_s == 2.5
    assert cls("again").retry_after_s is None
    assert cls.__doc__


def test_low_quality_names_its_reasons() -> None:
    error = LowQualityError("not usable", reasons=("too dark", "blurred"))
    assert error.reasons == ("too dark", "blurred")
    assert LowQualityError("not usable").reasons == ()
