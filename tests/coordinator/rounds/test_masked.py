"""The driver's view of a masked attempt: groups, what devices are told, and making it again after a restart."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.rounds.masked import MaskedRound
from mien.contribution import Total
from mien.errors import CohortError, CorruptDataError, NotFoundError, ReplayError, ViolationError
from mien.layout import ParameterEntry, ParameterLayout
from mien.protocol.canonical import model_to_json
from mien.protocol.rounds import Stage
from mien.rounds.plan import TaskPlan, plan_task
from mien.rounds.records import StepRecord
from mien.secagg import DeviceRound, Identity
from mien.secagg.groups import deal
from mien.secagg.vector import ContributionMap
from mien.specs import CohortSpec, DpSpec, FaceInputSpec, ModelSpec, PrivacySpec, TaskSpec
from tests.mien.secagg.cohort import make_device, people, verify
from tests.tiny import SHARD

LAYOUT = ParameterLayout((ParameterEntry("a", (40,)), ParameterEntry("b", (3, 20))))
SPEC = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=2), "made up", "none", ("b",))


def plan_of(n: int, **privacy: Any) -> TaskPlan:
    spec = PrivacySpec(**{"min_cohort": 3, "max_weight": 8, **privacy})
    cohort = CohortSpec(size=n, min_reports=3 * spec.groups)
    task = TaskSpec("t", method="fedavg", cohort=cohort, privacy=spec, trainable=("b",))
    return plan_task(task, model_to_json(SPEC, LAYOUT), public_shard=SHARD)


class Story:
    """Devices in one attempt, driven as a round's runner would; remembers accepted steps and vectors."""

    def __init__(self, n: int, **privacy: Any) -> None:
        self.plan = plan_of(n, **privacy)
        self.config = self.plan.round_config("ab" * 8, 1, 1, "0" * 64)
        self.identities = {identity.id.hex(): identity for identity in people(n)}
        self.groups = deal(self.identities, self.plan.task.privacy.groups, seed=3)
        self.masked = self.new_round()
        self.devices = {name: self._device(identity) for name, identity in self.identities.items()}
        self.steps: list[StepRecord] = []
        self.payloads: dict[str, bytes] = {}
        self.lost: set[str] = set()

    def new_round(self) -> MaskedRound:
        return MaskedRound(self.plan, self.config, self.groups, verify, threads=1)

    def _device(self, identity: Identity) -> DeviceRound:
        return make_device(self.config, identity)

    def contribution(self, name: str) -> np.ndarray[Any, Any]:
        """Return a device's lanes: count 1, weight 1..8, losses and update times the weight."""
        layout = self.plan.contribution
        rng = np.random.default_rng(int(name[:8], 16))
        vector = (0.1 * rng.standard_normal(layout.size)).astype("<f4")
        weight = np.float32(rng.integers(1, 9))
        vector[:2] = 1, weight
        vector[2:] *= weight
        return vector

    def expected(self, names: Collection[str]) -> np.ndarray[Any, Any]:
        return np.sum([self.contribution(name).astype(np.float64) for name in names], axis=0)

    def run(self, *stages: Stage, without: Collection[str] = ()) -> None:
        """Let every device but those `without` do its part of each stage, and end it."""
        for stage in stages:
            for name in sorted(self.devices):
                message = self.masked.message_for(name, stage)
                if name not in without and name not in self.lost and message:
                    self.step(name, stage, message)
            if stage is not Stage.UNMASK:
                self.lost |= self.masked.close(stage, self.payloads)

    def step(self, name: str, stage: Stage, message: bytes) -> None:
        answer = self._answer(self.devices[name], name, stage, message)
        step = StepRecord(name, stage, answer)
        self.masked.accept(step, self.payloads.get(name, b"") if stage is Stage.UPLOAD else b"")
        self.steps.append(step)

    def _answer(self, device: DeviceRound, name: str, stage: Stage, message: bytes) -> bytes:
        match stage:
            case Stage.KEYS:
                return device.advertise()
            case Stage.SHARES:
                return device.share(message)
            case Stage.UPLOAD:
                layout = self.plan.contribution
                addends = ContributionMap(layout).addends(layout.parse(self.contribution(name).tobytes()))
                masked = device.mask(message, addends)
                self.payloads[name] = masked.payload
                return masked.message
            case _:
                return device.agree(message) if device.stage == "Masked" else device.unmask(message)

    def replayed(self, stage: Stage) -> MaskedRound:
        again = self.new_round()
        again.replay(self.steps, stage, self.payloads, self.payloads.__getitem__)
        return again


ALL = (Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK)


def assert_is_sum(total: Total, expected: np.ndarray[Any, Any], n: int, weight: float, error: float) -> None:
    assert total.num_reports == n
    assert float(total["weight"][0]) == weight
    assert np.abs(total.vector - expected).max() <= error


def test_the_total_is_the_plain_sum_within_the_quantisers_bound() -> None:
    story = Story(6)
    story.run(*ALL)
    opened = story.masked.open()
    expected = story.expected(story.devices)
    bound = expected[1] * max(story.config.numbers.max_error, 2.0**-story.config.numbers.metric_frac_bits)
    assert_is_sum(opened.total, expected, 6, expected[1], bound)
    assert (opened.share_clipped, opened.suspects, opened.num_groups) == (0.0, (), 1)


@pytest.mark.parametrize("stage", [Stage.KEYS, Stage.SHARES, Stage.UPLOAD])
def test_devices_lost_before_their_upload_are_not_in_the_sum(stage: Stage) -> None:
    story = Story(9)
    gone = sorted(story.devices)[:1]
    before, after = ALL[: ALL.index(stage)], ALL[ALL.index(stage) :]
    story.run(*before)
    story.run(*after, without=gone)
    expected = story.expected(set(story.devices) - set(gone))
    assert_is_sum(story.masked.open().total, expected, 8, expected[1], expected[1] * 2.0**-8)


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_devices_lost_after_their_upload_are_in_the_sum(stage: Stage) -> None:
    story = Story(9)
    before, after = ALL[: ALL.index(stage)], ALL[ALL.index(stage) :]
    story.run(*before)
    story.run(*after, without=sorted(story.devices)[:1])
    expected = story.expected(story.devices)
    assert_is_sum(story.masked.open().total, expected, 9, expected[1], expected[1] * 2.0**-8)


@pytest.mark.parametrize("stage", ALL)
def test_a_restart_at_any_stage_makes_the_same_round_again(stage: Stage) -> None:
    story = Story(6)
    story.run(*ALL[: ALL.index(stage)])
    names = sorted(story.devices)
    for name in names[:3]:  # half of the stage's steps, then the power goes
        story.step(name, stage, story.masked.message_for(name, stage))
    again = story.replayed(stage)
    for name in names:
        assert again.message_for(name, stage) == story.masked.message_for(name, stage)
    story.masked = again
    for name in names[3:]:
        story.step(name, stage, again.message_for(name, stage))
    if stage is not Stage.UNMASK:
        story.masked.close(stage, story.payloads)
        story.run(*ALL[ALL.index(stage) + 1 :])
    expected = story.expected(names)
    assert_is_sum(story.masked.open().total, expected, 6, expected[1], expected[1] * 2.0**-8)
    assert (story.replayed(Stage.CLOSING).open().total.vector == story.masked.open().total.vector).all()


def test_too_few_end_the_attempt() -> None:
    story = Story(6)
    story.run(Stage.KEYS)
    with pytest.raises(CohortError):
        story.run(Stage.SHARES, without=sorted(story.devices)[:4])


def test_steps_of_strangers_repeated_and_changed_ones() -> None:
    story = Story(4)
    story.run(Stage.KEYS)
    first = story.steps[0]
    story.masked.accept(first)  # the same bytes again are welcome
    with pytest.raises(ReplayError):
        story.masked.accept(replace(first, message=story.steps[1].message))
    with pytest.raises(NotFoundError):
        story.masked.accept(replace(first, device_id="f" * 32))
    with pytest.raises(ViolationError):
        story.masked.accept(replace(first, stage=Stage.TRAINING))
    assert story.masked.message_for("f" * 32, Stage.SHARES) == b""
    assert story.masked.message_for(first.device_id, Stage.KEYS) == b"", "only the open stage is told"


# Groups


def groups_of(story: Story) -> Iterator[frozenset[str]]:
    yield from story.groups


def test_groups_are_sums_of_their_own_that_add_up() -> None:
    story = Story(12, groups=3)
    assert sorted(len(group) for group in groups_of(story)) == [4, 4, 4]
    story.run(*ALL)
    opened, expected = story.masked.open(), story.expected(story.devices)
    assert opened.num_groups == 3
    assert_is_sum(opened.total, expected, 12, expected[1], expected[1] * 2.0**-8)


def test_one_group_of_liars_does_not_carry_a_robust_mean_away() -> None:
    """A device that multiplies its update is held by the norm bound; its group is set aside element by element."""
    story = Story(12, groups=3, group_mean="median", l2_clip=50.0, coordinate_clip=50.0)
    liar = sorted(story.groups[0])[0]
    honest = story.contribution

    def lying(name: str) -> np.ndarray[Any, Any]:
        vector = honest(name)
        if name == liar:
            vector[4:] = 6.0 * vector[1]
        return vector

    story.contribution = lying  # type: ignore[method-assign]
    story.run(*ALL)
    total = story.masked.open().total
    update = total.mean("delta")
    others = [story.expected(group)[4:] / story.expected(group)[1] for group in story.groups[1:]]
    assert (update <= np.maximum(*others) + 2.0**-8).all()
    assert (update >= np.minimum(*others) - 2.0**-8).all()
    naive = story.expected(story.devices)[4:] / story.expected(story.devices)[1]
    assert np.abs(naive - update).max() > 0.1, "the plain mean would have been carried away"


def test_a_robust_mean_of_too_few_groups_ends_the_attempt_before_anything_can_be_opened() -> None:
    story = Story(12, groups=3, group_mean="median")
    with pytest.raises(CohortError):
        story.run(Stage.KEYS, without=sorted(story.groups[1])[:2])


def test_noise_is_drawn_once() -> None:
    dp = DpSpec("central_gaussian", noise_multiplier=1.0, epsilon=9.0, delta=1e-5, max_participations=1)
    story = Story(6, max_weight=1, dp=dp)
    contribution = story.contribution

    def of_weight_one(name: str) -> np.ndarray[Any, Any]:
        vector = contribution(name)
        vector[1] = 1.0
        return vector

    story.contribution = of_weight_one  # type: ignore[method-assign]
    story.run(*ALL)
    assert np.array_equal(story.masked.open().total.vector, story.masked.open().total.vector)


def test_a_group_that_is_too_small_is_left_out() -> None:
    story = Story(12, groups=3)
    gone = sorted(story.groups[1])[:2]
    story.run(Stage.KEYS, without=gone)
    assert story.lost == set(story.groups[1])
    story.run(*ALL[1:])
    expected = story.expected(story.groups[0] | story.groups[2])
    assert_is_sum(story.masked.open().total, expected, 8, expected[1], expected[1] * 2.0**-8)


def spoil(story: Story, name: str) -> None:
    """Have a device add another mask than its neighbours hold shares of: its vector is noise in whichever sum it is."""
    state: Any = story.devices[name]._state
    state.b[0] ^= 1


@pytest.mark.parametrize("mean", ["mean", "trimmed_mean", "median"])
def test_a_groups_spoiled_sum_is_left_out_where_enough_others_hold(mean: str) -> None:
    story = Story(12, groups=4, group_mean=mean)
    story.run(Stage.KEYS, Stage.SHARES)
    bad = sorted(story.devices)[5]
    spoil(story, bad)
    story.run(Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK)
    opened = story.masked.open()
    group = next(each for each in story.groups if bad in each)
    assert (story.masked.spoiled, story.masked.sound) == ([group], frozenset(story.devices) - group)
    assert (opened.num_groups, opened.total.num_reports) == (3, 9)
    again = story.replayed(Stage.CLOSING)
    again.open()
    assert (again.spoiled, again.sound) == (story.masked.spoiled, story.masked.sound)


@pytest.mark.parametrize(("n", "privacy"), [(6, {}), (9, {"groups": 3, "group_mean": "median"})])
def test_where_too_few_sums_hold_the_attempt_fails_and_says_whose_sum_it_was(n: int, privacy: dict[str, Any]) -> None:
    story = Story(n, **privacy)
    story.run(Stage.KEYS, Stage.SHARES)
    spoil(story, sorted(story.devices)[0])
    story.run(Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK)
    with pytest.raises(CorruptDataError, match="checksum"):
        story.masked.open()
    (spoiled,) = story.masked.spoiled
    assert sorted(story.devices)[0] in spoiled
    assert spoiled | story.masked.sound == frozenset(story.devices)
