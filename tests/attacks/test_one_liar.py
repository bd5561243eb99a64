"""p14: one phone of a real coordinator's cohort adds all that the sum is checked for, not what its clip allows it.

Without groups the document's bound is the true one: it moves the model by about the clip, whatever others say. With a
median of groups it moves no element beyond what honest phones say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from mien.protocol.v1 import rounds_pb2
from mien.secagg import pipeline
from mien.secagg.pipeline import Draft
from mien.secagg.planner import plan_numbers
from mien.specs import PrivacySpec, TaskSpec
from simulation.testing import LAYOUT, SPEC, THETA, FakeFleet, contribution, masked_task
from simulation.testing.tiny import layout_of
from tests.helpers import run
from tests.integration.test_rounds import outcome

PHONES, CLIP, MAX_WEIGHT = 12, 1.0, 32
LIARS_WEIGHT = 2
SHARE = 0.9
"""Of what the whole sum may have, so that an honest rest does not carry it over the bound."""

add_checksum = pipeline.add_checksum


def lying_checksum(draft: Draft, *, binding: bytes, phones: int) -> None:
    """Put a vector far beyond the clip in the place of the liar's in a sum over `phones`, with a fitting checksum."""
    if draft.addends.weight == LIARS_WEIGHT:
        numbers = plan_numbers(PHONES, l2_clip=CLIP, max_weight=MAX_WEIGHT)
        weights = LIARS_WEIGHT + phones - 1
        each = SHARE * numbers.norm_bound(weights, draft.layout.size) / np.sqrt(draft.layout.size)
        draft.vector[draft.layout.update] = np.uint32(round(each * 2.0**numbers.frac_bits))
    add_checksum(draft, binding=binding)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    with FakeFleet(tmp_path_factory.mktemp("liar")) as fleet:

        async def give() -> None:
            async with fleet.operator() as operator:
                await fleet.release_tiny_model(operator)

        run(give())
        yield fleet


def made(number: int, task: TaskSpec, _assignment: Any = None) -> bytes:
    return contribution(task, number, weight=float(LIARS_WEIGHT) if number == 0 else 1.0)


def step_of(fleet: FakeFleet, name: str, **privacy: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return by how much a round with the liar moved the trained part, and what honest phones said: (phones, part)."""
    spec = PrivacySpec(min_cohort=3, max_weight=MAX_WEIGHT, l2_clip=CLIP, **privacy)
    task = masked_task(name, name, size=PHONES, min_reports=PHONES, privacy=spec)

    async def story() -> str:
        async with fleet.operator() as operator, fleet.devices(name, PHONES) as devices:
            status = await operator.submit(task, name)
            await asyncio.gather(*(device.take_part(partial(made, i)) for i, device in enumerate(devices)))
            (report,) = await outcome(operator, status.task_id)
            assert (report.stage, report.num_reports) == (rounds_pb2.CLOSED, PHONES), report.reason
            return str(report.model_id)

    part = LAYOUT.part(task.trainable or SPEC.trainable)
    moved = part.gather(np.asarray(fleet.theta(run(story())))).astype(np.float64) - part.gather(THETA)
    delta = layout_of(task).slices["delta"]
    honest = [np.frombuffer(made(number, task), "<f4")[delta] for number in range(1, PHONES)]
    return moved, np.asarray(honest, np.float64)


def test_the_bound_that_the_document_names_is_what_one_liar_can_do(
    fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "add_checksum", partial(lying_checksum, phones=PHONES))
    moved, honest = step_of(fleet, "alone")
    assert np.linalg.norm(moved) > 2 * np.linalg.norm(honest, axis=1).max()
    assert np.linalg.norm(moved) <= 1.01 * CLIP


def test_a_median_of_groups_lets_one_liar_move_nothing_beyond_what_honest_phones_say(
    fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "add_checksum", partial(lying_checksum, phones=PHONES // 3))
    moved, honest = step_of(fleet, "grouped", groups=3, group_mean="median")
    assert (moved >= honest.min(axis=0) - 1e-3).all()
    assert (moved <= honest.max(axis=0) + 1e-3).all()
