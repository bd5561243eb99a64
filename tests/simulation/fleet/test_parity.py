"""A policy that is tried in the fleet runs so in the coordinator: the same scripted phones, in both.

On one side the fleet; on the other the coordinator's real engine, database, spool and protocol under a clock that jumps
over waiting. Stages, their times, cohorts, who was late and why attempts ended must be the same.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.pacer import Pacer
from mien.protocol.rounds import Stage
from mien.secagg import Identity
from mien.specs import AsynchronousSpec, CohortSpec, DeadlineSpec, PrivacySpec, TaskSpec
from simulation.fleet.desk import TASK_ID, Change
from simulation.fleet.fleet import Fleet
from simulation.fleet.phones import Outlook
from simulation.fleet.profile import CoordinatorSettings
from simulation.testing import tiny_task
from tests.mien.secagg.cohort import people
from tests.simulation.fleet.real import Heard, Told, really
from tests.simulation.fleet.scripted import Script, ScriptedPhones, Span

SETTINGS = CoordinatorSettings(20.0, 5.0, 50.0, 5, 0.0, 0.0)
DRAW = 0.5
HOURS = 3600.0


class HeardFleet(Fleet):
    """A fleet that remembers what the coordinator's engine is asked for, too."""

    stages: list[Heard]
    participants: dict[tuple[int, int], dict[str, str]]
    reasons: dict[tuple[int, int], str]

    def changed(self, change: Change, now: float) -> None:
        """Note the stage, and at the end of an attempt who got how far."""
        record = change.attempt.record
        key = record.round, record.attempt
        stages = [change.after.stage] if key in self.participants else [Stage.SELECTING, change.after.stage]
        for stage in stages:
            entry = (round(now, 6), *key, str(stage))
            if not any(earlier[1:] == entry[1:] for earlier in self.stages):
                self.stages.append(entry)
        self.participants[key] = {device: str(step) for device, step in change.after.participants.items()}
        self.reasons[key] = change.after.reason
        super().changed(change, now)


def emulated(task_id: str, task: TaskSpec, scripts: list[Script], names: list[str], until_s: float) -> Told:
    """Return what came of a task in the fleet."""
    phones = ScriptedPhones(task, scripts, names)
    fleet = HeardFleet(task, phones, SETTINGS, until_s=until_s, task_id=task_id, draw=lambda: DRAW, look_every_s=0.0)
    fleet.stages, fleet.participants, fleet.reasons = [], {}, {}
    history = fleet.run()
    return Told(fleet.stages, fleet.participants, fleet.reasons, history.state)


def crowd(seed: int, num: int, until_s: float) -> list[Script]:
    """Return phones that come and go, of different speed, some of which fail; no two events fall on one time."""
    rng = np.random.default_rng(seed)
    scripts = []
    for _ in range(num):
        edges = np.sort(rng.uniform(0, until_s, 8))
        spans = tuple(
            Span(float(start), float(end), bool(rng.random() < 0.3))
            for start, end in zip(edges[::2], edges[1::2], strict=True)
        )
        outlooks = []
        for _ in range(6):
            training_s = float(rng.lognormal(4.0, 0.6))
            fails = float(rng.uniform(0, training_s + 2)) if rng.random() < 0.15 else None
            outlooks.append(Outlook(training_s, fails, bool(rng.random() < 0.5)))
        scripts.append(Script(spans, tuple(outlooks), float(rng.uniform(0.5, 4.0))))
    return scripts


DEADLINES = DeadlineSpec(120.0, 150.0, 20.0, 20.0, 40.0, 20.0, 20.0)
PLAIN = tiny_task(
    "plain",
    "p",
    rounds=7,
    cohort=CohortSpec(4, 3, 1.5),
    deadlines=DEADLINES,
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)
SOFT = replace(
    PLAIN, name="soft", deadlines=replace(DEADLINES, selecting_soft_s=30.0, training_soft_s=60.0, upload_soft_s=3.0)
)
MASKED = replace(PLAIN, name="masked", rounds=4, privacy=PrivacySpec(min_cohort=3, max_weight=32))
OVERLAP = replace(PLAIN, name="overlap", asynchronous=AsynchronousSpec(max_concurrency=3, max_staleness=1))
HARSH = replace(PLAIN, name="harsh", deadlines=replace(DEADLINES, selecting_s=25.0, training_s=25.0))


@pytest.mark.parametrize("task", [PLAIN, SOFT, MASKED, OVERLAP, HARSH], ids=lambda task: task.name)
def test_the_fleet_does_what_the_coordinator_does(
    task: TaskSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.rounds.engine.Pacer", functools.partial(Pacer, draw=lambda: DRAW))
    until_s = 2 * HOURS
    scripts, identities = crowd(7, 16, until_s), people(16)
    real = really(tmp_path, task, scripts, identities, SETTINGS, until_s, TASK_ID)
    assert len(real.stages) >= 10, "the story is long enough to differ"
    told = emulated(TASK_ID, task, scripts, [_name(each) for each in identities], until_s)
    assert [entry[1:] for entry in told.stages] == [entry[1:] for entry in real.stages]
    assert [entry[0] for entry in told.stages] == pytest.approx([entry[0] for entry in real.stages], abs=1e-3)
    assert told.participants == real.participants
    assert told.reasons == real.reasons
    assert told.state == real.state


def _name(identity: Identity) -> str:
    return identity.id.hex()
