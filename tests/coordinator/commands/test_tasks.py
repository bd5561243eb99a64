"""What `task watch` says of a round: every stage by its name, and whose attempt it is."""

from __future__ import annotations

from rich.console import Console

from coordinator.commands.tasks import _event, _View
from coordinator.service.messages import STAGES
from mien.wire.v1 import operator_pb2, rounds_pb2


def event(
    stage: rounds_pb2.Stage, *, duty: rounds_pb2.Duty = rounds_pb2.TRAIN, attempt: int = 1
) -> operator_pb2.TaskEvent:
    ref = rounds_pb2.RoundRef(task_id="t", round=3, attempt=attempt)
    report = operator_pb2.RoundReport(round=ref, stage=stage, duty=duty)
    return operator_pb2.TaskEvent(task=operator_pb2.TaskStatus(name="silos", state="running"), round=report)


def test_every_stage_has_a_name() -> None:
    assert "unknown" not in {_event(event(stage))["round"]["stage"] for stage in STAGES.values()}


def test_validators_attempts_are_told_from_trainers() -> None:
    trained, judged = event(rounds_pb2.CLOSED), event(rounds_pb2.KEYS, duty=rounds_pb2.VALIDATE, attempt=2)
    assert [_event(each)["round"]["duty"] for each in (trained, judged)] == ["train", "validate"]
    view, console = _View(), Console(width=160, record=True)
    for each in (trained, judged):
        view.take(each)
    with console.capture() as drawn:
        console.print(view.draw())
    assert "3, attempt 2 of validators" in drawn.get()
