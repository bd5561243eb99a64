"""Records of a run: a header, a line a round, whole after any kill, never mixed with another run's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mien.errors import AlreadyExistsError, CorruptDataError, DiskFullError, NotFoundError
from mien.records import from_mapping, to_mapping
from simulation.runs.records import Header, Journal, num_rounds, settings_sha256

HEADER = Header("e", "a" * 64, "b" * 64, 3, "c0ffee", "mien-sim run e.toml", "Linux, 2 cores", "2026-01-02T03:04:05Z")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "records.jsonl")
    journal.begin(HEADER)
    for number in (1, 2, 3):
        journal.append({"round": number, "loss_after": number / 8})
    return journal


def test_lines_say_what_they_are(journal: Journal) -> None:
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["header", "round", "round", "round"]
    assert journal.header() == HEADER
    assert journal.rounds()[1] == {"round": 2, "loss_after": 0.25}
    assert num_rounds(journal.path) == 3
    assert num_rounds(journal.path.with_name("none")) == 0


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_without_its_end_is_left_out_and_removed(journal: Journal, cut: int) -> None:
    journal.path.write_bytes(journal.path.read_bytes()[:-cut])
    assert [record["round"] for record in journal.rounds()] == [1, 2]
    journal.take_up(HEADER, 2)
    journal.append({"round": 3, "loss_after": 0.5})
    assert [record["loss_after"] for record in journal.rounds()] == [0.125, 0.25, 0.5]


def test_going_on_removes_later_rounds_and_says_who_went_on(journal: Journal) -> None:
    other = dataclasses.replace(HEADER, commit="beef", machine="another")
    journal.check(other)
    journal.take_up(other, 1)
    assert [record["round"] for record in journal.rounds()] == [1]
    note = json.loads(journal.path.read_text().splitlines()[-1])
    assert (note["kind"], note["after_round"], note["commit"]) == ("resumed", 1, "beef")
    assert journal.header() == HEADER


@pytest.mark.parametrize(("field", "what"), [("experiment_sha256", "settings"), ("data_sha256", "faces")])
def test_other_settings_or_faces_are_not_mixed(journal: Journal, field: str, what: str) -> None:
    with pytest.raises(AlreadyExistsError, match=f"other {what} .*--out"):
        journal.check(from_mapping(Header, {**to_mapping(HEADER), field: "d" * 64}))


def test_what_is_no_journal(journal: Journal) -> None:
    with pytest.raises(NotFoundError, match="holds no run"):
        Journal(journal.path.with_name("none")).rounds()
    for text in ("", "[]\n", "{}\n", '{"kind": "round", "round": 1}\n', "\xff\n"):
        journal.path.write_text(text)
        with pytest.raises(CorruptDataError):
            journal.header()


def test_a_full_disk_is_said(journal: Journal) -> None:
    journal.path = Path("/dev/full")
    with pytest.raises(DiskFullError, match="free some space"):
        journal.append({"round": 4})


def test_settings_are_known_by_their_content() -> None:
    assert settings_sha256({"a": 1, "b": [2]}) == settings_sha256({"b": [2], "a": 1})
    assert settings_sha256({"a": 1}) != settings_sha256({"a": 1.5})


@pytest.mark.parametrize("numbers", [(1, 1), (1, 2, 2, 3, 3), (1, 3), (2,), (1, 3, 2), (1, "2")])
def test_what_two_writers_left_is_refused(journal: Journal, numbers: tuple[object, ...]) -> None:
    journal.begin(HEADER)
    for number in numbers:
        journal.append({"round": number})
    for read in (journal.rounds, journal.header, lambda: journal.take_up(HEADER, 1)):
        with pytest.raises(CorruptDataError, match="twice or out of order"):
            read()
