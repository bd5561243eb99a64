"""The device benchmark: engines take the same steps, float64 is near both, and jobs survive their pipe."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import _device, _parity, device
from benchmarks._parity import relative

CASES = {case.part.names: case for case in device._tiny_cases()}
BOTH: tuple[_device.Engine, ...] = ("torch", "float64")
TAIL = min(CASES.values(), key=lambda case: case.part.size)


@pytest.fixture(scope="module")
def turns() -> dict[str, _device.Turn]:
    job = TAIL.job()
    engines: tuple[_device.Engine, ...] = ("torch", "onnxruntime", "executorch", "float64")
    only = replace(job, objectives=job.objectives[:1])
    return {engine: _device.measure(replace(only, engine=engine)) for engine in engines}


def test_engines_give_one_update_and_figures(turns: dict[str, _device.Turn]) -> None:
    start = TAIL.part.gather(TAIL.theta)
    torch, onnx, pte, exact = (turns[engine].values[0] for engine in turns)
    assert np.linalg.norm(torch - start) > 1e-3
    assert relative(onnx, torch, start) < 1e-5
    assert relative(pte, torch, start) < 1e-5
    assert 0 < relative(torch, exact, start) < 1e-4
    for engine in ("torch", "onnxruntime", "executorch"):
        turn = turns[engine]
        assert 0 <= turn.step_s < math.inf  # a coarse clock may tell no time at all, a busy machine a long one
        assert 0 <= turn.embed_s < math.inf
        assert 0 < turn.step_peak_mb < 500
        assert turn.process_peak_mb > turn.step_peak_mb
    # No torch in that process.
    assert turns["onnxruntime"].process_peak_mb < turns["torch"].process_peak_mb / 2


def test_jobs_survive_their_pipe() -> None:
    job = TAIL.job()
    again = _device._unpacked(_device._packed(job))
    assert (again.part, again.local, again.graphs, again.is_tiny) == (job.part, job.local, job.graphs, True)
    np.testing.assert_array_equal(again.crops, job.crops)
    for mine, theirs in zip(again.objectives, job.objectives, strict=True):
        assert (mine.name, mine.constants, mine.unit_norm) == (theirs.name, dict(theirs.constants), theirs.unit_norm)
        assert mine.private.keys() == theirs.private.keys()
        assert mine.per_crop.keys() == theirs.per_crop.keys()


def test_sizes_of_graphs_are_those_of_the_part() -> None:
    for objective in TAIL.objectives:
        sizes = device._graph_kb(TAIL, objective)
        assert set(sizes) == set(TAIL.engines)
        assert all(1 < size < 200 for size in sizes.values())
    assert all(0.05 < size < 5 for size in device._graphs_mb(TAIL).values())


def test_what_is_compared_is_every_objective_of_both_engines() -> None:
    compared = {name for case in device._tiny_cases(everything=True) for name in case.objectives}
    assert {name.split("_")[0] for name in compared} >= {"positive", "cosface", "fedfr", "arcface", "softmax"}


def test_a_parity_row_is_the_distance_after_that_many_steps() -> None:
    first = next(iter(TAIL.objectives))
    case = replace(TAIL, objectives={first: TAIL.objectives[first]}, engines=("onnxruntime",))
    rows = _parity.parity([case])
    assert [(row["objective"], row["steps"], row["part"]) for row in rows] == [
        (first, steps, "tail") for steps in (1, 5, 20)
    ]
    assert all(0 <= row["difference"]["onnxruntime"] < 1e-5 for row in rows)


def test_float64_sees_which_images_are_mirrored() -> None:
    # A teacher of mirrored images that differs: its rows are taken for those images alone, in either precision.
    case = next(case for case in device._tiny_cases(everything=True) if "cosface_distilled" in case.objectives)
    job = replace(case.job(), objectives=(case.objectives["cosface_distilled"],), is_timed=False)
    torch, exact = (_device.measure(replace(job, engine=engine)).values[0] for engine in BOTH)
    assert relative(torch, exact, case.part.gather(case.theta)) < 1e-4


def test_kept_graphs_lie_in_a_folder_of_their_exporter_state(tmp_path: Path) -> None:
    with device._graphs(Namespace(graphs=str(tmp_path))) as folder, device._graphs(Namespace(graphs="")) as other:
        assert folder.parent == tmp_path
        assert other.parent != tmp_path
