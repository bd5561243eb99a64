"""Through SFace's own last blocks: the study's rows, and FedFace against everybody there in all engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.export.build import export_graphs
from device_sdk.runtimes.forms import standard_forms
from device_sdk.runtimes.manifest import GraphFolder
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from mien.contribution import Total
from mien.layout import Vector
from mien.methods import find_method
from mien.methods.base import DeviceInput, Runtime
from mien.records import from_mapping
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, ServerSpec, TaskSpec
from simulation.engines.base import Engine, SequentialEngine
from simulation.engines.engine import run_task, select
from simulation.engines.fused import FusedEngine
from simulation.engines.stacked import StackedEngine
from simulation.faces.conditions import every_second
from simulation.faces.workbench import Workbench, open_network
from simulation.papers.block import in_half, study
from simulation.papers.conditions import GROUPS, trained

QUICK, FULL = study(quick=True, faces=None), study(quick=False, faces=None)
FEDFACE = find_method("fedface")
TASK = TaskSpec(
    "block",
    method="fedface",
    rounds=3,
    cohort=CohortSpec(size=4, min_reports=3),
    local=LocalSpec(lr=0.1, flip=False),
    server=ServerSpec(momentum=0.5),
    privacy=PrivacySpec(min_cohort=3, reveals=("class_moment",)),
)


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    open_network.cache_clear()
    yield open_network(None, 5, 4)
    open_network.cache_clear()


@pytest.mark.parametrize("row", [row for each in (QUICK, FULL) for row in each.rows if "task" in row.settings])
def test_every_row_is_a_task_that_its_method_takes(row: Any, bench: Workbench) -> None:
    task = from_mapping(TaskSpec, row.settings["task"])
    layout = find_method(task.method).contribution_layout(task, bench.part, bench.dim)
    assert bool(layout.revealed) == (row.name == "fedface")
    assert ("moment" in layout.slices) == (row.name.startswith("everybody") or row.name == "control")
    assert bench.part.size == 545_280
    fewer = {"control": "public", "everybody_some": "some", "fedavg": "some", "fedface": "some"}
    held = fewer.get(row.name, "phones")
    assert task.cohort.size == row.settings[held]


def test_both_scales_have_the_same_rows_and_nobody_twice() -> None:
    assert [row.name for row in QUICK.rows] == [row.name for row in FULL.rows]
    for each in (QUICK, FULL):
        settings = each.rows[0].settings
        assert sum(settings[name] for name in GROUPS) == settings["max_people"]


def test_every_second_picture_is_in_the_condition(bench: Workbench) -> None:
    odd = every_second(bench.labels)
    assert odd.tolist() == [4 * person + number for person in range(5) for number in (1, 3)]
    differs = (in_half(bench, "dark").crops != bench.crops).any(axis=(1, 2, 3))
    np.testing.assert_array_equal(np.flatnonzero(differs), odd)
    spared = in_half(bench, "dark", bench.people[1:2]).crops
    np.testing.assert_array_equal(spared[4:8], bench.crops[4:8])
    others = bench.labels != 1
    np.testing.assert_array_equal(spared[others], in_half(bench, "dark").crops[others])


@pytest.mark.parametrize("name", ["everybody", "pooled"])
def test_a_row_trains_the_blocks_and_nothing_else(bench: Workbench, name: str) -> None:
    (row,) = [row for row in QUICK.rows if row.name == name]
    settings = row.settings
    if "task" in settings:
        settings = {**settings, "task": {**settings["task"], "cohort": {"size": 4, "min_reports": 4}}}
    changed = trained(bench, bench.people, settings, 0, 0.1) != bench.theta
    assert changed.sum() > 100_000
    assert bench.part.gather(changed).sum() == changed.sum()


@pytest.mark.parametrize("engine", [FusedEngine, StackedEngine])
def test_engines_agree_on_phones_that_come_and_go(bench: Workbench, engine: type[Any]) -> None:
    """Four of five phones in a round: one is not in the last sum, and embeds with the model before."""
    assert len({select(TASK, bench.people, number) for number in (1, 2, 3)}) > 1

    def after(running: Engine) -> Vector:
        cohort = bench.cohort({name: (name,) for name in bench.people})
        return run_task(TASK, bench.part, bench.dim, bench.theta, cohort, running).state.theta

    one_by_one, together = after(SequentialEngine(bench.runtime)), after(engine(bench.runtime))
    moved = np.abs(one_by_one - bench.theta).max()
    assert moved > 1e-4
    # Sums of float32 in another order differ by processor, and three rounds with momentum add up what they differ by.
    np.testing.assert_allclose(together, one_by_one, rtol=0, atol=1e-2 * moved)


def test_a_phone_without_torch_sends_the_same(bench: Workbench, tmp_path: Path) -> None:
    """By the exported graphs, in a round whose moments were opened by three others before."""
    model, names = bench.model, bench.people
    export_graphs(model.spec, model.layout, tmp_path, forms=standard_forms("moment_softmax"))
    graphs = OnnxRuntime(model.spec, model.layout, GraphFolder.at(tmp_path, model.spec, model.layout))
    state = FEDFACE.server_start(TASK, bench.part, bench.theta)

    def sent(name: str, runtime: Runtime) -> Any:
        inp = DeviceInput(
            TASK, bench.part, bench.dim, state.theta, bench.crops_of(name), reply=FEDFACE.reply(state, name), seed=3
        )
        return FEDFACE.device_round(inp, runtime).contribution

    total = Total.empty(FEDFACE.contribution_layout(TASK, bench.part, bench.dim))
    for name in names[:3]:
        total = total.plus(sent(name, bench.runtime))
    state = FEDFACE.server_step(TASK, bench.part, state, total, {})
    theirs, ours = sent(names[3], graphs), sent(names[3], bench.runtime)
    for lane, place in ours.layout.slices.items():
        expected = ours.vector[place]
        np.testing.assert_allclose(
            theirs.vector[place], expected, atol=1e-3 * float(np.abs(expected).max()), err_msg=lane
        )
