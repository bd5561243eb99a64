"""Hostile addends in a sum of statistics: what is out of bounds is cut or found, what is within moves little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mien.contribution import Contribution, Total
from mien.errors import ConfigError, CorruptDataError, MienError, NonFiniteError
from mien.methods.base import DeviceInput, reply_names
from mien.methods.statistics import COUNTS, MEAN, ODDS, SECOND, STATISTICS, WITHIN, check_sums, norm_bound, options_of
from mien.secagg.emulation import EmulatedSum
from mien.secagg.masks import WordStream
from mien.secagg.planner import plan_round
from mien.secagg.vector import ContributionMap
from mien.specs import DpSpec, TaskSpec
from simulation.engines.sums import NOBODY
from tests.mien.methods.test_statistics import (
    DIM,
    MIXED,
    Given,
    adapter_of,
    gated_part,
    gated_theta,
    part_of,
    people,
    phone,
    stepped,
    task_of,
    total_of,
)

TASK = task_of(options={"min_people": 3, "max_people": 1, "form": "wccn", "shrinkage": 0.2})
HONEST = [phone(TASK, each) for each in people(60, seed=7)]


def opened(task: TaskSpec, contributions: list[Contribution]) -> Total:
    """Return the sum as secure aggregation opens it: every device's own encoder clips and rounds."""
    mapped = ContributionMap(contributions[0].layout)
    summed = EmulatedSum(plan_round(replace(task, cohort=replace(task.cohort, size=100)), mapped.layout, NOBODY))
    for number, each in enumerate(contributions):
        stream = WordStream(bytes([number]) * 32)
        summed.add(mapped.addends(each), DpSpec(), lambda size, drawn=stream: drawn.take(size).tobytes()[:size])  # type: ignore[misc]
    return mapped.total(summed.open(0.0))


def with_lanes(changes: dict[str, Any]) -> Contribution:
    """Return an honest phone's contribution whose lanes are other ones."""
    vector = HONEST[0].vector.copy()
    for name, values in changes.items():
        vector[HONEST[0].layout.slices[name]] = values
    return Contribution(HONEST[0].layout, vector)


@pytest.mark.parametrize("lane", [MEAN, SECOND, WITHIN])
@pytest.mark.parametrize("value", [1e30, -1e30])
def test_a_phone_that_shouts_is_cut_to_the_bound(lane: str, value: float) -> None:
    """Whatever it says, it adds no more than the clip, a tenth of what sixty honest phones add; or it is found."""
    total = opened(TASK, [with_lanes({lane: value}), *HONEST[1:]])
    honest = opened(TASK, HONEST[1:])
    assert np.linalg.norm(total.vector[2:] - honest.vector[2:]) <= TASK.privacy.l2_clip + 0.01
    before, _ = adapter_of(stepped(TASK, honest, DIM), DIM)
    try:
        after, _ = adapter_of(stepped(TASK, total, DIM), DIM)
    except (CorruptDataError, ConfigError):
        return
    assert np.linalg.norm(after - before) < np.linalg.norm(before)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_leaves_nor_enters(value: float) -> None:
    with pytest.raises(NonFiniteError):
        HONEST[0].layout.parse(with_lanes({WITHIN: value}).to_bytes())
    with pytest.raises(NonFiniteError):
        opened(TASK, [with_lanes({WITHIN: value}), *HONEST[1:]])


@pytest.mark.parametrize(
    "changes",
    [
        {COUNTS: [-1.0, 1.0, 1.0]},
        {COUNTS: [1.0, -1.0, 1.0]},
        {COUNTS: [0.0, 0.0, -1.0]},
        {COUNTS: [1.0, 1.0, 2.0]},
    ],
)
def test_a_cohort_of_liars_about_counts_is_found(changes: dict[str, Any]) -> None:
    """One alone hides in the others' sum, by at most the one that it is; many do not."""
    with pytest.raises(CorruptDataError, match="a phone lied or is broken"):
        stepped(TASK, total_of([with_lanes(changes) for _ in range(31)] + HONEST[31:]), DIM)


def test_a_liar_within_the_bound_moves_the_map_by_its_share() -> None:
    """It claims a scatter along one direction, as long as is allowed: the map moves, and is still of full rank."""
    along = np.zeros(DIM * (DIM + 1) // 2)
    along[0] = 1.0
    honest, _ = adapter_of(stepped(TASK, total_of(HONEST), DIM), DIM)
    lied, _ = adapter_of(stepped(TASK, total_of([with_lanes({WITHIN: along}), *HONEST[1:]]), DIM), DIM)
    assert np.linalg.norm(lied - honest) > 1e-3
    assert np.linalg.norm(lied - honest) < np.linalg.norm(honest)
    assert np.linalg.matrix_rank(lied) == DIM


@pytest.mark.parametrize("seed", range(20))
def test_a_sum_of_anything_gives_a_map_or_a_reason(seed: int) -> None:
    """Never NaN, never a crash: whatever the numbers in an opened sum are."""
    rng = np.random.default_rng(seed)
    total = Total(HONEST[0].layout, rng.normal(0, 10.0 ** rng.integers(-6, 6), HONEST[0].layout.summed_size), 60)
    total.vector[:2] = 60.0
    for form in ("centre", "wccn", "lda", "plda"):
        task = task_of(options={"min_people": 3, "form": form, "rank": 3, "shrinkage": 0.0})
        try:
            state = stepped(task, total, DIM)
        except MienError:
            continue
        assert np.isfinite(part_of(DIM).gather(state.theta)).all()


def test_the_bound_is_that_of_an_honest_phone() -> None:
    """So no honest contribution is cut under the clip that a task must have."""
    for each in HONEST:
        assert np.linalg.norm(ContributionMap(each.layout).addends(each).update) <= norm_bound(TASK)


# What a coordinator tells a mixture's phones.


def mixed_phone(odds: Any) -> Contribution:
    """Return what a phone sends that was told these odds."""
    part, crops = gated_part(), np.zeros((4, 1, 1, 3), np.uint8)
    inp = DeviceInput(MIXED, part, 2 * DIM + 1, gated_theta(part, scale=1.0), crops, reply={ODDS: odds})
    features = np.random.default_rng(3).normal(0, 3, (4, 2 * DIM + 1))
    return STATISTICS.device_round(inp, Given(features)).contribution


@pytest.mark.parametrize(
    "odds",
    [
        np.full(DIM + 1, np.nan, np.float32),
        np.full(DIM + 1, np.inf, np.float32),
        np.zeros(DIM, np.float32),
        np.zeros((DIM + 1, 1), np.float32),
        np.zeros(DIM + 1, np.int64),
        np.zeros(0, np.float32),
    ],
    ids=["nan", "infinite", "too short", "of two axes", "integers", "empty"],
)
def test_odds_in_another_form_send_nothing(odds: Any) -> None:
    with pytest.raises(CorruptDataError, match="mixture_odds"):
        mixed_phone(odds)


@pytest.mark.parametrize("scale", [-3e38, -1e3, 0.0, 1e3, 3e38])
def test_no_odds_make_a_phone_add_more_than_it_does(scale: float) -> None:
    """A weight is from a tenth to 1, and so is each element, of what it is where everybody counts."""
    found = mixed_phone(np.full(DIM + 1, scale, np.float32)).vector[2:]
    whole = mixed_phone(np.array([0.0] * DIM + [100.0], np.float32)).vector[2:]
    assert np.isfinite(found).all()
    assert (np.abs(found) <= np.abs(whole)).all()
    assert (found * whole >= 0).all()
    assert (np.abs(found) >= 0.1 * np.abs(whole) - 1e-9).all()


def test_odds_are_told_to_mixtures_alone() -> None:
    """A phone refuses whatever its task does not name: nobody is weighed where the task does not say so."""
    layout = STATISTICS.contribution_layout(MIXED, gated_part(), 2 * DIM + 1)
    plain = replace(MIXED, options={**MIXED.options, "mixture": False})
    assert reply_names(STATISTICS.requirements(MIXED).shared_reply, layout) == {ODDS}
    assert not reply_names(STATISTICS.requirements(plain).shared_reply, layout)


@pytest.mark.parametrize("value", ["true", 1, 0.5, None, [True]])
def test_a_mixture_is_on_or_off(value: Any) -> None:
    with pytest.raises(ConfigError, match="mixture"):
        options_of(replace(MIXED, options={**MIXED.options, "mixture": value}))


def mixed_people(features: list[Any], odds: Any) -> list[Contribution]:
    """Return what phones send that hold one person each and were told these odds."""
    part, sent = gated_part(), []
    for own_ND in features:
        crops = np.zeros((len(own_ND), 1, 1, 3), np.uint8)
        inp = DeviceInput(MIXED, part, 2 * DIM + 1, gated_theta(part, scale=1.0), crops, reply={ODDS: odds})
        shown = np.concatenate([own_ND, own_ND, own_ND[:, :1]], axis=1)
        sent.append(STATISTICS.device_round(inp, Given(shown)).contribution)
    return sent


@pytest.mark.parametrize("num_phones", [20, 160])
def test_no_odds_make_a_sum_of_one_persons_template(num_phones: int) -> None:
    """A coordinator that knows a face singles it out: the others still are what the owner's floor asks for."""
    held = people(num_phones, seed=11)
    held[0] = held[0] + 10  # a face that is far from all others, so that linear odds tell it from them
    means = [each.mean(axis=0) / MIXED.options["longest"] for each in held]
    aimed = means[0] - np.mean(means[1:], axis=0)
    between = max(float(aimed @ each) for each in means[1:])
    assert between < float(aimed @ means[0]), "the odds do tell this person from all others"
    scale = 1e4 / (float(aimed @ means[0]) - between)
    bias = -scale * (float(aimed @ means[0]) + between) / 2
    odds = np.append(scale * aimed, bias).astype(np.float32)
    sent = mixed_people(held, odds)
    counts = [float(each.vector[each.layout.slices[COUNTS]][0]) for each in sent]
    whole = 1 / MIXED.options["max_people"]
    assert counts[0] == pytest.approx(whole)
    assert counts[1:] == pytest.approx([whole / 10] * (num_phones - 1))
    share = counts[0] / sum(counts)
    assert share <= 1 / (1 + (num_phones - 1) / 10) + 1e-6
    floor = num_phones // STATISTICS.requirements(MIXED).phones_as_one
    assert share < 1 / floor, "an owner who asks for that floor is no larger a part of it than where all count alike"


def test_a_weighed_sum_has_a_tenth_of_each_phone() -> None:
    """A sum in which hardly anybody counts is none: phones that sent less broke the rule that hides the others."""
    sent = mixed_people(people(60, seed=12), np.array([0.0] * DIM + [-100.0], np.float32))
    total, least = total_of(sent), 0.1 / MIXED.options["max_people"]
    check_sums(total, DIM, least=least)
    with pytest.raises(CorruptDataError, match="counts of people"):
        check_sums(total, DIM, least=10 * least)
    halved = Total(total.layout, 0.5 * total.vector, total.num_reports)
    with pytest.raises(CorruptDataError, match="counts of people"):
        check_sums(halved, DIM, least=least)
