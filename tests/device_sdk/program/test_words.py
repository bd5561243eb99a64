"""The SDK speaks of calls and settings, its program of commands: no text of the one is left in the other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_sdk.device import Device
from device_sdk.program.words import TABLE, typed
from scripts.write_cli_snapshot import SNAPSHOT
from tests.test_house import ROOT, modules

COMMAND = re.compile(r"(?<![\w-])--[a-z]|\bmien-(?:device|coordinator|registrar|sim)\b|\bpython -m\b|`gallery ")
CALL = re.compile(r"\b(?:Device|device_sdk)\.\w+|`\w+`|\b\w+=(?:True|\")|`(?:participation|verification|enrollment)\.")
PIP = re.compile(r"pip install.*")
NO_TEXTS = {"mien-device", "--system"}
"""A program's name in the protocol and in key stores, and an option of busctl."""
PROGRAM = ("program", "export/__main__.py")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a file but docstrings, with their line; what f-strings fill in reads as 7, or ["7"]."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values)
            yield node.lineno, re.sub("(allow_\\w+ = )7", r'\1["7"]', "".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (inside | said):
            yield node.lineno, node.value


def sdk_texts() -> Iterator[tuple[str, str]]:
    """Yield (place, text) of every string of the SDK outside its program."""
    for _name, path in modules("device_sdk"):
        below = path.relative_to(ROOT / "device_sdk").as_posix()
        if not below.startswith(PROGRAM):
            yield from ((f"{below}:{line}", text) for line, text in texts(path))


def test_texts_of_the_sdk_name_no_command_and_no_option() -> None:
    found = [place for place, text in sdk_texts() if text not in NO_TEXTS and COMMAND.search(PIP.sub("", text))]
    assert not found, f"say it as a call or a setting, and as a command in device_sdk/program/words.py: {found}"


def test_the_program_says_all_that_the_sdk_says_in_its_own_words() -> None:
    sentences = [(place, text) for place, text in sdk_texts() if " " in text and CALL.search(text)]
    assert len(sentences) > 20
    shown = [(place, typed(text).replace("device_sdk.export ", "")) for place, text in sentences]
    left = [each for each in shown if CALL.search(each[1])]
    assert not left, f"device_sdk/program/words.py lacks what is said there: {left}"


def test_no_line_of_the_table_is_for_nothing() -> None:
    said = [text for _place, text in sdk_texts()] + ["another program that takes part is using this folder"]
    for pattern, words in TABLE:
        assert any(re.search(pattern, text) for text in said), pattern
        said = [re.sub(pattern, words, text) for text in said]


def test_what_the_table_names_exists() -> None:
    """Calls are methods of `Device`; options are some of the program's."""
    known = SNAPSHOT.read_text(encoding="utf-8")
    for pattern, words in TABLE:
        for call in re.findall(r"Device\\\.(\w+)", pattern):
            assert callable(getattr(Device, call))
        for option in re.findall(r"--[a-z-]+", words if isinstance(words, str) else ""):
            assert option in known or option == "--out", option


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("damaged; call `Device.update()` to fetch it again", "damaged; run `mien-device update` to fetch it again"),
        ("your wish: `participation.min_cohort = 12`", "your wish: --min-cohort 12"),
        (
            'your wish: `participation.allow_reveal = ["class_embeddings", "class_moment"]`',
            "your wish: --allow-reveal class_embeddings --allow-reveal class_moment",
        ),
        ('your wish: `participation.allow_profiles = ["honest_but_curious"]`', "--allow-profile honest_but_curious"),
        ("task '`participation.allow_reveal = [x]`' is", "task '`participation.allow_reveal = [x]`' is"),
        ('`participation.allow_reveal = ["a; b"]`', "--allow-reveal 'a; b'"),
        ('your wish: `participation.outside_methods = ["mine"]`', 'participation.outside_methods = ["mine"] in its'),
        (
            'export it (`device_sdk.export` with `engine="onnxruntime"`)',
            "export MODEL --out FOLDER --engine onnxruntime`)",
        ),
        ("call `Device.update()` with an invite", "run `mien-device update`"),
        (
            "ask the operator to measure this model's thresholds and sign it anew, then",
            "--keep-thresholds` and sign this model anew (`model export`, `model sign`, `model release --bundle`)",
        ),
        (
            "ask the operator to measure this model's thresholds, then",
            "run `mien-coordinator model evaluate released --data FACES --keep-thresholds`, then",
        ),
        ("nothing of the kind: 100 % `as it was`", "nothing of the kind: 100 % `as it was`"),
    ],
)
def test_a_text_in_words_of_the_command_line(said: str, shown: str) -> None:
    assert typed(said).endswith(shown) or shown in typed(said)
