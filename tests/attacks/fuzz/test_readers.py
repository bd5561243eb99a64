"""Every reader of foreign bytes, on damaged inputs: it answers or raises a MienError, in bounded time and memory.

The damage is the same each time. What was found once lies in `corpus`, a folder a reader, and is read each time.
"""

from __future__ import annotations

import os
import random
import resource
import time
from pathlib import Path
from typing import Final

import pytest

from mien.errors import MienError
from tests.attacks.fuzz.mutations import mutate
from tests.attacks.fuzz.readers import GROUPS, NO_READER, Reader, found, readers

INPUTS: Final = int(os.environ.get("MIEN_FUZZ_INPUTS", "60"))
CORPUS: Final = Path(__file__).parent / "corpus"
LONGEST_S: Final = 20.0
MORE_MEMORY: Final = 1024 * 1024**2


def attempt(reader: Reader, data: bytes) -> None:
    """Read some bytes; anything but an answer or a MienError fails."""
    began, message = time.process_time(), "an answer"
    try:
        reader.read(data)
    except MienError as error:
        message = error.message
    assert message
    assert len(message) < 4000
    assert time.process_time() - began < LONGEST_S


def folder_of(name: str) -> Path:
    """Return where inputs lie that a reader once fell over."""
    return CORPUS / "".join(c if c.isalnum() else "_" for c in name).strip("_")


def test_every_reader_is_fuzzed() -> None:
    named = {name for name in readers() if not name.startswith("+")}
    there = set(found())
    assert there - named - set(NO_READER) == set(), "readers without inputs: add them to readers.py"
    assert (named | set(NO_READER)) - there == set(), "no longer there: remove them from readers.py"


def test_every_corpus_has_its_reader() -> None:
    there = {path.name for path in CORPUS.iterdir() if path.is_dir()}
    assert there <= {folder_of(name).name for name in readers()}


@pytest.mark.parametrize("group", GROUPS)
def test_damaged_inputs(group: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, reader in readers(group).items():
        damage(name, reader, INPUTS)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MORE_MEMORY


def damage(name: str, reader: Reader, inputs: int) -> None:
    """Read what is right, what was found once, and damaged inputs; one that fails is kept where MIEN_FUZZ_KEEP says."""
    rng, keep = random.Random(name), os.environ.get("MIEN_FUZZ_KEEP")
    for seed in reader.seeds:
        attempt(reader, seed)
    for path in sorted(folder_of(name).glob("*")):
        attempt(reader, path.read_bytes())
    for number in range(inputs):
        data, is_good = mutate(rng, rng.choice(reader.seeds), reader.seeds), False
        try:
            attempt(reader, data)
            is_good = True
        finally:
            if keep and not is_good:
                kept = Path(keep) / folder_of(name).name
                kept.mkdir(parents=True, exist_ok=True)
                (kept / f"{number:06}").write_bytes(data)
