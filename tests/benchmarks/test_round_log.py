"""The benchmark of the log of rounds runs, and an answer stays small however long the log is."""

from __future__ import annotations

import argparse

from benchmarks.round_log import benchmark


def test_an_answer_grows_with_the_logarithm_of_the_log() -> None:
    found = benchmark(argparse.Namespace(quick=True))
    small, large = found["logs"]
    assert (small["entries"], large["entries"]) == (2_000, 20_000)
    assert small["answer_bytes"] <= large["answer_bytes"] < 2_048
    assert small["release_answer_bytes"] <= large["release_answer_bytes"] < 2_048
    assert min(large["check_ms"], large["release_check_ms"]) > 0
