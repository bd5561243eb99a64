"""What `fleet show` and `fleet roll-outs` say: who is still asked, and no number below zero that is none."""

from __future__ import annotations

import pytest

from coordinator.commands.fleet import _cells, _said, asking, waiting
from mien.evaluation.rollout_spec import RollOutSpec
from mien.protocol.canonical import task_to_json
from mien.protocol.v1 import operator_pb2
from mien.rounds.records import TaskState
from mien.rounds.rollouts import evaluation_task
from mien.specs import CohortSpec

MODEL = "ab" * 32
TASK = evaluation_task(RollOutSpec(cohort=CohortSpec(20, 16)), name="fleet-1", model_id=MODEL, threshold=0.5)


def status(state: str = "running", method: str = TASK.method, model_id: str = MODEL) -> operator_pb2.TaskStatus:
    return operator_pb2.TaskStatus(
        name=TASK.name, state=state, method=method, model_id=model_id, task_json=task_to_json(TASK)
    )


@pytest.mark.parametrize("state", list(TaskState))
def test_a_task_that_goes_on_says_for_how_many_phones_it_waits(state: TaskState) -> None:
    tasks = [status(state), status(method="fedface"), status(model_id="cd" * 32)]
    found = asking(tasks, MODEL)
    assert found == ([] if state.is_over else tasks[:1])
    for task in found:
        assert f"fleet-1 is {state}: it waits for the answers of 16 phones, up to 20" in waiting(task)


@pytest.mark.parametrize("drop", [-0.0, -0.00001])
def test_nothing_is_minus_nothing(drop: float) -> None:
    model = {"tar": {"value": 0.97}, "fmr": {"value": 0.001}, "eer": 0.02, "threshold": 0.5}
    figures = {"num_phones": 16, "num_mated": 75, "num_non_mated": 4000, "model": model}
    cells = _cells({**figures, "tar_drop": {"value": drop, "low": drop, "high": drop}})
    assert "0.0000 (0.0000 to 0.0000)" in cells
    told = _said({"phones": 16.0, "tar": 0.97, "fmr": 0.001, "tar_drop": drop})
    assert "-0.0000" not in " ".join([*cells, told])
