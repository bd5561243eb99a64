"""The figures of the benchmark of attacks; what it runs is tried in tests/attacks/test_resources.py."""

from __future__ import annotations

import math

from benchmarks._attacks import ATTACKS, headers_frame
from benchmarks.hostile import METHODS, QUICK, REST, row, visits


def test_a_row_compares_answered_visits_and_counts_the_refused() -> None:
    told = row("registrar", "idle", [0.01] * 100, [0.03] * 99 + [math.inf])
    assert (told["visits"], told["refused"], told["p99_ratio"]) == (100, 1, 3.0)


def test_a_port_that_answers_nobody_counts_as_the_longest_wait() -> None:
    assert row("registrar", "idle", [0.01] * 2, [math.inf] * 2)["p99_ms"] == 8000


def test_a_visit_that_fails_is_no_time() -> None:
    def visit(_timeout_s: float) -> None:
        raise OSError

    assert visits(visit, 0.0) == [math.inf, math.inf]


def test_every_attack_is_known_and_none_is_named_twice() -> None:
    named = (*QUICK, *REST)
    assert len(set(named)) == len(named)
    assert {name for _, name in named} == ATTACKS.keys()
    assert {port for port, _ in named} == METHODS.keys()


def test_a_call_is_begun_and_not_ended() -> None:
    frame = headers_frame(3, "/mien.v1.Registrar/Hello")
    assert int.from_bytes(frame[:3], "big") == len(frame) - 9
    assert (frame[3], frame[4], frame[8]) == (1, 4, 3), "HEADERS with END_HEADERS, without END_STREAM"
    assert b"/mien.v1.Registrar/Hello" in frame
