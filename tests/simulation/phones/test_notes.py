"""Figures of processes are put together by hand-computed rules; faults and invites are checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from device_sdk.server.client import StageEvent
from mien.errors import ConfigError, EmptyFolderError, NotFoundError
from mien.protocol.rounds import RoundRef, Stage
from mien.records import from_mapping, to_mapping
from simulation.phones.client import Faults
from simulation.phones.fleet import FleetOptions
from simulation.phones.notes import Notes, ProcessNotes, attempts, summary
from simulation.phones.run import PhonesOptions, plans_for, read_invites, task_for

REF = RoundRef("t", 1, 1)


class Time:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def heard(notes: Notes, time: Time, *stages: tuple[Stage, float]) -> None:
    for stage, at_s in stages:
        time.now = at_s
        notes.saw(REF, StageEvent(stage, 0.0, "why" if stage is Stage.ABORTED else "", "m", 3))


def process(*stages: tuple[Stage, float], uploads: int, first_bytes: int = 10_000_000) -> ProcessNotes:
    time = Time()
    notes = Notes(time)
    heard(notes, time, *stages)
    for number in range(uploads):
        time.now = 110.0 + number
        notes.uploaded(REF, f"d{number}", 1_000_000, 1.0)
        notes.answered("hello", 10.0 * (number + 1))
    notes.lost(Stage.KEYS)
    notes.not_counted("late")
    notes.add("counted", uploads)
    return notes.figures(4, cpu_s=2.0, first_bytes=first_bytes, peak_bytes=18_000_000)


def two() -> list[ProcessNotes]:
    return [
        process((Stage.TRAINING, 100.0), (Stage.KEYS, 104.0), (Stage.CLOSED, 120.5), uploads=2),
        process((Stage.TRAINING, 101.0), (Stage.KEYS, 103.0), (Stage.CLOSED, 120.0), uploads=1),
    ]


def test_processes_are_put_together() -> None:
    (seen,) = attempts(two())
    assert seen.stage_s() == {"TRAINING": 3.0, "KEYS": 17.0}
    assert (seen.num_reports, len(seen.uploaded), seen.uploaded_bytes) == (3, 3, 3_000_000)
    figures = summary(two())
    assert figures["phones"] == 8
    assert (figures["rounds_closed"], figures["rounds_aborted"]) == (1, 0)
    assert figures["rounds_per_minute"] == pytest.approx(3.0)  # one in the 20 s from the first word to the last
    assert figures["upload_mb_s"] == pytest.approx(3 / 2)  # from 109 s to 111 s
    assert figures["calls"]["hello"]["calls"] == 3
    assert figures["calls"]["hello"]["p50_ms"] == 10.0
    assert figures["lost_at"] == {"keys": 2}
    assert figures["not_counted"] == {"late": 2}
    assert figures["counts"] == {"counted": 3}
    assert figures["cpu_ms_per_phone_and_round"] == pytest.approx(4000 / 3, abs=0.01)
    assert figures["memory_mb_per_phone"] == 2.0


def test_notes_travel_as_json() -> None:
    notes = two()[0]
    assert summary([from_mapping(ProcessNotes, to_mapping(notes))]) == summary([notes])


def test_an_aborted_attempt_keeps_its_reason() -> None:
    (seen,) = attempts([process((Stage.TRAINING, 1.0), (Stage.ABORTED, 5.0), uploads=0)])
    assert seen.record()["end"] == "aborted"
    assert seen.record()["reason"] == "why"
    assert summary([process((Stage.TRAINING, 1.0), uploads=0)])["rounds_per_minute"] is None


@pytest.mark.parametrize("wrong", [{"drop_out": 1.5}, {"reconnect": -0.1}, {"slow_s": -1.0}, {"away_s": -1.0}])
def test_faults_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"between 0 and 1|negative"):
        Faults(**wrong)


def options(**changes: Any) -> PhonesOptions:
    values: dict[str, Any] = {"out": Path("out"), "count": 5, "processes": 2, "fleet": FleetOptions(3), "local": True}
    return PhonesOptions(**{**values, **changes})


@pytest.mark.parametrize(
    "wrong",
    [
        {"local": False},
        {"invites": Path("x")},
        {"processes": 6},
        {"local": False, "invites": Path("x"), "task": Path("t")},
        {"images": 0},
        {"count": 2},
        {"count": 3000},
    ],
)
def test_options_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        options(**wrong)


def test_phones_are_spread_over_processes() -> None:
    plans = plans_for(options(), Path("f"), ["a", "b", "c", "d", "e"])
    assert [(plan.invites, plan.first) for plan in plans] == [(("a", "b", "c"), 0), (("d", "e"), 3)]
    assert plans[0].folder != plans[1].folder
    assert "invites" not in repr(plans[0])


def test_the_local_task_asks_every_phone() -> None:
    task = task_for(options(count=200, processes=1))
    assert (task.cohort.size, task.cohort.min_reports, task.rounds) == (200, 100, 3)
    assert task.privacy.is_masked


def test_invites_come_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_invites(tmp_path / "none", 1)
    (tmp_path / "invites").write_text("one\n\n two \nthree\n")
    assert read_invites(tmp_path / "invites", 2) == ["one", "two"]
    with pytest.raises(EmptyFolderError, match="holds 3 invites for 4 phones"):
        read_invites(tmp_path / "invites", 4)
