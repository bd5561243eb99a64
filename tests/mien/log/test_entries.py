"""Entries of the log: the same bytes from the same facts, other bytes from others, and nothing else is read as one."""

from __future__ import annotations

import pytest

from mien.errors import TransparencyError
from mien.log.entries import (
    LogEntry,
    certificate_entry,
    certificate_sha256,
    release_entry,
    result_entry,
    roster_entry,
    round_entry,
    task_entry,
)

HASHES = {
    "task_sha256": "1" * 64,
    "model_sha256": "2" * 64,
    "layout_sha256": "3" * 64,
    "statement_sha256": "4" * 64,
}
ROUND = round_entry("ab" * 16, 3, 1, **HASHES)


def test_the_bytes_of_an_entry_are_fixed():
    assert ROUND.data == (
        b'{"attempt":1,"kind":"round","layout_sha256":"' + b"3" * 64 + b'","model_sha256":"' + b"2" * 64
        + b'","round":3,"statement_sha256":"' + b"4" * 64 + b'","task":"' + b"ab" * 16 + b'","task_sha256":"'
        + b"1" * 64 + b'"}'
    )  # fmt: skip
    assert ROUND.subject == "ab" * 16 + "/3/1"


@pytest.mark.parametrize("name", HASHES)
def test_every_hash_of_a_statement_makes_another_entry(name):
    assert round_entry("ab" * 16, 3, 1, **(HASHES | {name: "f" * 64})).data != ROUND.data


def test_rosters_are_one_entry_in_any_order():
    assert roster_entry("ab", 1, 1, [b"x" * 32, b"y" * 32]) == roster_entry("ab", 1, 1, [b"y" * 32, b"x" * 32])
    assert roster_entry("ab", 1, 1, [b"x" * 32]) != roster_entry("ab", 1, 1, [b"y" * 32])


def test_a_result_names_what_was_measured_by_its_hash():
    plain, *others = (
        result_entry("ab", 1, 1, model_sha256="2" * 64, measured=measured)
        for measured in ([], [b"{}"], [b"{}", b"{}"], [b"{ }"])
    )
    assert plain.told["measured_sha256"] == ""
    assert len({each.data for each in (plain, *others)}) == 4
    assert plain.subject == "ab/1/1"


@pytest.mark.parametrize(
    "entry",
    [
        ROUND,
        roster_entry("ab", 1, 1, [b"x" * 32]),
        certificate_entry(certificate_sha256(b"der")),
        release_entry("a" * 64, None, 0.5),
        task_entry("ab" * 16, "2" * 64),
        result_entry("ab" * 16, 3, 1, model_sha256="2" * 64),
    ],
    ids=lambda entry: entry.kind,
)
def test_entries_are_read_as_they_were_written(entry):
    assert LogEntry.read(entry.data) == entry


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{", b'{"kind":"other"}', b'{"kind":"round"}', b'{"kind": "certificate","sha256":"a"}', b"\xff"),
        b'{"kind":"task","model_sha256":["a"],"task":"b"}',
        b'{"attempt":1,"kind":"round","round":1,"task":"b"}',
    ],
)
def test_what_is_no_entry_is_refused(data):
    with pytest.raises(TransparencyError, match="no program writes"):
        LogEntry.read(data)
