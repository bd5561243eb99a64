"""The pages of what was measured are what the kept results say, and nobody typed a figure."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.__main__ import names
from mien.rounds.pacing import Pace, pause_s
from scripts.write_performance_pages import (
    DOCS,
    FIGURES,
    capacity,
    digits,
    looks,
    measured,
    number,
    performance,
    said_of_commit,
    size,
    summary,
    value_at,
)


def test_the_pages_are_of_the_kept_results() -> None:
    results, page = measured(), (DOCS / "capacity.md").read_text(encoding="utf-8")
    assert performance(results) == (DOCS / "performance.md").read_text(encoding="utf-8")
    assert capacity(page, results) == page


def test_every_benchmark_is_told_and_has_what_is_told_of_it() -> None:
    assert sorted(FIGURES) == names()
    for name, result in measured().items():
        assert FIGURES[name], name
        missing = {key for key in FIGURES[name] if value_at(result, key) is None}
        # A quick run leaves out a peer that is not installed and rounds that train a block; one that is kept may be
        # older than the rounds that train an adapter. A hundred rounds tell no growth.
        left_out = ("flower_", "participate_block_", "participate_adapter_", "rss_growth_", "fd_growth_")
        assert {key for key in missing if not key.startswith(left_out)} == set(), name
        assert {"command", "machine", "commit"} <= result.keys(), name


def test_figures_are_read_by_people() -> None:
    assert [number(each) for each in (1234567, 0.98765, 12.0, "1 to 2", True)] == [
        "1,234,567",
        "0.988",
        "12",
        "1 to 2",
        "True",
    ]
    assert [digits(each) for each in (0.0001, 0.0, 0.1234, 1234.0)] == ["under 0.001", "0", "0.12", "1,200"]
    assert [size(each) for each in (120, 66_000, 5.5e9, 3.9e15)] == ["0.12 KB", "66 KB", "5.5 GB", "3.9 PB"]
    assert summary("round_log").startswith("What looking a round")


def test_figures_lie_at_keys_and_places() -> None:
    result = {"rows": [{"cpu_s": 0.5}, {"cpu_s": 0.0}], "people": 3}
    assert [value_at(result, key) for key in ("people", "rows.1.cpu_s")] == [3, 0.0]
    assert [value_at(result, key) for key in ("persons", "rows.2.cpu_s", "rows.cpu_s", "people.0")] == [None] * 4


def test_what_was_measured_of_changed_files_or_in_part_says_so() -> None:
    assert said_of_commit(f"{'ab' * 20}") == "ab" * 6
    assert said_of_commit(f"{'ab' * 20}-changed") == f"{'ab' * 6}, changed"
    lfw = measured()["lfw"]
    assert f"Protocol: {lfw['protocol']}." in performance({"lfw": lfw})


@pytest.mark.parametrize("fleet", [10**6, 10**8])
def test_a_fleet_looks_in_as_often_as_its_coordinator_says(fleet: int) -> None:
    draws = (np.arange(1000) + 0.5) / 1000
    pauses = [pause_s(Pace(), devices=fleet, wanted_per_s=0.0, draw=draw) for draw in draws]
    assert looks(fleet) == pytest.approx(fleet / np.mean(pauses), rel=0.05)


def test_a_page_without_its_table_is_told() -> None:
    with pytest.raises(SystemExit, match="no table under ## A phone"):
        capacity("# Capacity\n", measured())
