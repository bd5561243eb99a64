"""Numbers in words, and that pages and commands leave it to one function to say whether it is one thing or several."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mien.format import several

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "coordinator/commands",
    "coordinator/dashboard",
    "coordinator/operator",
    "simulation/pages",
    "device_sdk/program",
)
NOUNS = re.compile(
    r" (?:revoked )?(devices|phones|people|rounds|images|pictures|models|tasks|sums|runs|classes|clients|hours|"
    r"identities|comparisons|attempts|candidates|validators|steps|groups|invites|members|entries|files|releases|cohorts|days|roots|"
    r"keys|embeddings)\b"
)
TWO_AT_LEAST = {
    "count": "the sentence for one invite is another one",
    "number": "the sentence for one is another one",
    "task.aborted_in_a_row": "one that was aborted is no alert",
    "gates.every": "the sentence for one is another one",
    "title.rpartition(' ')[0]": "a part of a whole",
    "steps[1]": "an update to a new model has several steps",
}


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [
        (1, "round", "", "1 round"),
        (0, "round", "", "0 rounds"),
        (1_234, "round", "", "1\u202f234 rounds"),
        (1, "person", "people", "1 person"),
        (2, "person", "people", "2 people"),
        (0, "entry", "entries", "0 entries"),
    ],
)
def test_one_is_no_plural(number: int, noun: str, plural: str, text: str) -> None:
    assert several(number, noun, plural) == text


def counted_by_hand(path: Path) -> Iterator[str]:
    """Yield what a module puts before a plural by itself, but for names of constants."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            said = ast.unparse(value.value)
            if NOUNS.match(str(after.value)) and not said.isupper():
                yield said


@pytest.mark.parametrize("place", PLACES)
def test_what_may_be_one_is_counted_by_the_function_for_it(place: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {{{said}}}"
        for path in sorted((ROOT / place).rglob("*.py"))
        for said in counted_by_hand(path)
        if said not in TWO_AT_LEAST
    }
    assert not found, "say it by mien.format.several"
