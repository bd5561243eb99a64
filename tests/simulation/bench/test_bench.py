"""What mien-sim bench measures: the networks' sizes, that loops and engines take the same steps, and flat memory."""

from __future__ import annotations

import gc
import json
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mien.specs import CohortSpec
from simulation.bench import loops
from simulation.bench.cases import Case, small
from simulation.bench.measure import best_engine, compare, row_of, select_s
from simulation.bench.work import HIDDEN, client, loss_of, tail
from simulation.engines.base import Cohort, SequentialEngine
from simulation.engines.engine import rounds
from simulation.program.bench import phones_of
from simulation.program.cli import app

CASE = small("1e4", clients=4, images=3, steps=2)


def test_sizes_are_what_they_are_called() -> None:
    assert small("1e4", clients=2).part.size == 10_432
    assert small("1e6", clients=2).part.size == 989_312
    assert small("1e7", clients=2).part.size == 9_982_128
    assert set(HIDDEN) == {"1e4", "1e6", "1e7"}
    assert len(CASE.cohort.crops) == 4
    assert all(len(crops) == 3 and not crops.flags.writeable for crops in CASE.cohort.crops.values())


def test_the_resident_loop_leaves_the_model_as_it_was_and_the_bare_one_trains_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loops are what they are called: the second takes each phone from the same start."""
    seen: list[list[torch.Tensor]] = []
    steps = loops._steps

    def watched(case: Case, network: torch.nn.Module, *rest: object) -> None:
        seen.append([tensor.detach().clone() for tensor in network.parameters()])
        steps(case, network, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loops, "_steps", watched)
    loops.resident(CASE, "cpu")()
    assert all(torch.equal(a, b) for each in seen for a, b in zip(each, seen[0], strict=True))
    seen.clear()
    loops.plain(CASE, "cpu")()
    assert not torch.equal(seen[0][0], seen[1][0])


def test_everything_that_is_compared_ran() -> None:
    told: list[str] = []
    rows = compare(CASE, threads=1, turns=1, tell=told.append)
    assert [line.split(":")[0].strip() for line in told[:-1]] == [row.engine for row in rows]
    assert re.fullmatch(r"  1 more turns of each: about \d+ s", told[-1])
    assert {"torch, bare loop", "torch, resident model", "torch, large batch", "sequential", "stacked", "fused"} <= {
        row.engine for row in rows
    }
    for row in rows:
        assert (row.parameters, row.clients, row.images) == (10_432, 4, 3)
        assert row.wall_ms > 0
        assert row.gpu is None
        assert row.as_record()["engine"] == row.engine
    assert not best_engine(rows).engine.startswith("torch")
    assert row_of(rows, "none") is None
    assert 0 < select_s(10_000, 10, times=2) < 60


def test_peers_train_the_same_network_on_as_many_images() -> None:
    features, own = client(3, images=5)
    assert features.shape == (5, 192)
    np.testing.assert_allclose(np.linalg.norm(own, axis=1), 1, atol=1e-6)
    network = tail("1e4")
    loss = loss_of(network(torch.from_numpy(features)), torch.from_numpy(own))
    assert 0 < loss.item() < 4
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), tail("1e4").parameters(), strict=True))


def test_the_command_prints_one_table_as_json() -> None:
    done = CliRunner().invoke(app, ["bench", "--quick", "--clients", "2", "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [case["rows"][0]["parameters"] for case in found["cases"]] == [10_432, 989_312]
    assert found["recommended"] in {row["engine"] for row in found["cases"][-1]["rows"]}
    assert found["device"] == "cpu"
    assert "fused: " in done.stderr


def test_quick_takes_fewer_phones_unless_told() -> None:
    """Which is what lets it end within a minute on two cores."""
    assert [phones_of(None, quick=True), phones_of(None, quick=False), phones_of(7, quick=True)] == [20, 100, 7]


def test_rounds_leave_nothing_behind() -> None:
    """Two hundred rounds of the same phones: what Python holds after the last hundred is what it held before them."""
    case = small("1e4", clients=3, images=1)
    task = replace(case.task, rounds=200, cohort=CohortSpec(size=2, min_reports=2))
    work = case.work(case.cohort, 1)
    engine = SequentialEngine(case.runtime(1, "cpu"))
    objects = []
    for step in rounds(task, case.part, work.dim, work.state, Cohort(work.cohort.crops), engine):
        number = step.record.round
        del step
        if number in (100, 200):
            gc.collect()
            objects.append(len(gc.get_objects()))
        if number == 100:
            tracemalloc.start()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 500_000  # of what the last hundred rounds made: a hundred updates of 41,728 bytes
    assert objects[1] - objects[0] < 100  # not one object a round
