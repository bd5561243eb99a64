"""Second moments over whole rounds: who sees what, what comes back, and that only addends leave a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.operator.disclosure import disclosures
from device_sdk.rounds.disclosure import Agreement, check_agreed, disclosure
from mien.contribution import Arrays, Total
from mien.errors import ConfigError
from mien.layout import Vector
from mien.methods import METHODS, moments
from mien.methods.base import DeviceInput, DeviceOutput, Method, ServerState, shared_words
from mien.methods.spreadout import MomentSpec, device_moment, pack_symmetric, packed_size
from mien.protocol.ids import AttemptNumber, RoundNumber
from mien.secagg.emulation import EmulatedSum
from mien.secagg.masks import WordStream
from mien.secagg.pipeline import encode
from mien.secagg.planner import RoundIds, plan_round
from mien.secagg.quantise import NumberFormat
from mien.secagg.vector import ContributionMap, decode
from mien.specs import CohortSpec, DpSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, Run, run_task
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

TINY, DIM = tiny_cnn(8), 8
CROPS = {f"phone{i}": made_up_crops(3, seed=i) for i in range(5)}
PUBLIC = PublicFaces(np.concatenate([made_up_crops(2, seed=50 + k) for k in range(4)]), np.repeat(np.arange(4), 2))
MOMENT = {"every": 2, "lr": 0.5, "steps": 1}
OPTIONS: dict[str, dict[str, object]] = {
    "fedface": {"private_form": "hinge"},
    "fedaws": {"private_form": "hinge"},
    "fedgc": {"identities": 2, "correction": {"kind": "none"}, "head": {"kind": "cosface", "scale": 8.0}},
}
LABELS = {name: np.array([0, 0, 1]) for name in CROPS}
METHOD_NAMES = sorted(OPTIONS)


def task_of(name: str, **changes: object) -> TaskSpec:
    task = TaskSpec(
        name="moments",
        method=name,
        rounds=4,
        cohort=CohortSpec(size=5, min_reports=3),
        local=LocalSpec(lr=0.05, flip=False),
        privacy=PrivacySpec(reveals=("class_moment",), min_cohort=3),
        options={**OPTIONS[name], "moment": MOMENT},
    )
    return replace(task, **changes)  # type: ignore[arg-type]


def labels_of(name: str) -> dict[str, NDArray[np.int64]]:
    return LABELS if name == "fedgc" else {}


def run(task: TaskSpec) -> Run:
    cohort = Cohort(CROPS, public=PUBLIC, labels=labels_of(task.method))
    return run_task(task, TINY.part(), DIM, TINY.theta, cohort, TINY.runtime())


def device(task: TaskSpec, name: str, state: ServerState, private: Arrays | None = None) -> DeviceOutput:
    method = METHODS[task.method]
    inp = DeviceInput(
        task=task,
        part=TINY.part(),
        dim=DIM,
        theta=state.theta,
        crops=CROPS[name],
        labels=labels_of(task.method).get(name),
        private=private or {},
        reply=method.reply(state, name),
        public_crops=PUBLIC.crops,
        public_labels=PUBLIC.labels,
    )
    return method.device_round(inp, TINY.runtime())


def start_of(task: TaskSpec) -> tuple[Method, ServerState]:
    method = METHODS[task.method]
    return method, method.server_start(task, TINY.part(), TINY.theta)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_contribution_holds_addends_and_nothing_else(name: str) -> None:
    task = task_of(name)
    method, state = start_of(task)
    layout = method.contribution_layout(task, TINY.part(), DIM)
    assert layout.revealed == ()
    assert [(lane.name, lane.size) for lane in layout.summed][-1] == ("moment", packed_size(DIM))
    contribution = device(task, "phone0", state).contribution
    assert contribution.revealed() == {}
    assert contribution.vector.size == layout.summed_size


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_the_opened_sum_is_that_of_the_devices_moments_in_any_order(name: str) -> None:
    task = task_of(name)
    method, state = start_of(task)
    outputs = [device(task, phone, state) for phone in CROPS]
    opened = []
    for order in (outputs, outputs[::-1]):
        total = Total.empty(method.contribution_layout(task, TINY.part(), DIM))
        for output in order:
            total = total.plus(output.contribution)
        opened.append(method.server_step(task, TINY.part(), state, total, {}).arrays)
    np.testing.assert_allclose(opened[0]["moment"], opened[1]["moment"], atol=1e-7)
    expected = np.sum([output.private[moments.OWN].astype(np.float64) for output in outputs], axis=0)
    np.testing.assert_allclose(opened[0]["moment"], expected, atol=1e-6)
    assert (opened[0]["moment_number"][0], opened[0]["moment_devices"][0]) == (1, 5)


def test_a_sum_is_asked_for_every_second_round_and_zeros_are_sent_between() -> None:
    task = task_of("fedface")
    method, state = start_of(task)
    private: dict[str, Arrays] = {}
    wanted, lengths, numbers = [], [], []
    for _ in range(4):
        wanted.append(float(state.arrays["moment_wanted"][0]))
        total = Total.empty(method.contribution_layout(task, TINY.part(), DIM))
        for phone in CROPS:
            output = device(task, phone, state, private.get(phone))
            private[phone] = output.private
            total = total.plus(output.contribution)
        lengths.append(float(np.linalg.norm(total["moment"])))
        state = method.server_step(task, TINY.part(), state, total, {})
        numbers.append(float(state.arrays["moment_number"][0]))
    assert wanted == [1, 0, 1, 0]
    assert numbers == [1, 1, 2, 2]
    assert [length > 0 for length in lengths] == [True, False, True, False]


def test_only_a_device_of_the_sum_takes_its_own_term_out() -> None:
    """With one other device in the sum, the step of who was in it is against that one; of who was not, against both."""
    task = task_of("fedface")
    rng = np.random.default_rng(0)
    one, other, late = rng.normal(size=(3, DIM)).astype(np.float32)
    own = device_moment(one[None])
    total = (own + device_moment(other[None])).astype(np.float32)
    reply = {
        "moment": total,
        "moment_number": np.array([3.0], np.float32),
        "moment_devices": np.array([2.0], np.float32),
        "moment_wanted": np.array([0.0], np.float32),
    }
    spec = MomentSpec(every=2, lr=0.5, steps=1)
    kept = {moments.OWN: own, moments.OWN_NUMBER: np.array([3.0], np.float32)}
    _, state = start_of(task)
    base = DeviceInput(task, TINY.part(), DIM, state.theta, CROPS["phone0"], reply=reply)

    def by_hand(w: Vector, against: list[Vector]) -> NDArray[np.float64]:
        units = [v / np.linalg.norm(v) for v in against]
        mean = sum(np.outer(v, v) for v in units) / len(units)
        w = w / np.linalg.norm(w)
        moved = w - min(0.5, 0.9 / np.linalg.eigvalsh(mean)[-1]) * mean @ w
        return np.asarray(moved / np.linalg.norm(moved))

    inside = moments.step(replace(base, private=kept), spec, one[None])[0]
    np.testing.assert_allclose(inside, by_hand(one, [other]), atol=1e-6)
    outside = moments.step(replace(base, private={}), spec, late[None])[0]
    np.testing.assert_allclose(outside, by_hand(late, [one, other]), atol=1e-6)
    stale = {**kept, moments.OWN_NUMBER: np.array([2.0], np.float32)}
    np.testing.assert_allclose(
        moments.step(replace(base, private=stale), spec, one[None])[0], by_hand(one, [one, other]), atol=1e-6
    )


def test_moments_hold_class_embeddings_apart() -> None:
    options = OPTIONS["fedface"]
    with_moment = run(task_of("fedface", options={**options, "moment": {**MOMENT, "lr": 1.0, "steps": 2}}))
    without = run(task_of("fedface", options=options, privacy=PrivacySpec(min_cohort=3)))

    def crowding(finished: Run) -> float:
        w = np.stack([arrays["class_embedding"] for arrays in finished.cohort.private.values()])
        return float((w @ w.T).mean())

    assert crowding(with_moment) < crowding(without)
    assert "moment" not in without.state.arrays


def test_emulated_noise_is_added_once_and_follows_the_seed() -> None:
    quiet = task_of("fedface", rounds=1)
    noisy = task_of(
        "fedface", rounds=1, options={**OPTIONS["fedface"], "moment": {**MOMENT, "noise": 2.0, "emulate_noise": True}}
    )
    clear, first, same = (run(task).state.arrays["moment"] for task in (quiet, noisy, noisy))
    np.testing.assert_array_equal(first, same)
    assert np.std(first - clear) == pytest.approx(2.0, rel=0.4)


@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize(
    ("privacy", "match"),
    [
        (PrivacySpec(reveals=("class_moment",), min_cohort=3, secure_aggregation="off"), "Turn secure aggregation on"),
        (PrivacySpec(min_cohort=3), "class_moment"),
        (PrivacySpec(reveals=("class_moment",), min_cohort=3, groups=3), r"privacy\.groups"),
        (
            PrivacySpec(reveals=("class_embeddings",), min_cohort=3),
            r"options\.moment\.every|options\.moment is of no use",
        ),
    ],
)
def test_moments_that_a_task_does_not_own_up_to_are_refused(name: str, privacy: PrivacySpec, match: str) -> None:
    cohort = CohortSpec(size=9, min_reports=9)
    with pytest.raises(ConfigError, match=match):
        METHODS[name].contribution_layout(task_of(name, privacy=privacy, cohort=cohort), TINY.part(), DIM)


def test_noise_that_protects_nobody_does_not_pass_for_differential_privacy() -> None:
    dp = DpSpec(mechanism="central_gaussian", noise_multiplier=1.0, epsilon=8.0, delta=1e-6, max_participations=3)
    promised = PrivacySpec(min_cohort=3, max_weight=1, dp=dp)
    task = task_of("fedface", privacy=promised, trainable=("mix.*",))
    assert METHODS["fedface"].contribution_layout(task, TINY.part(), DIM).revealed == ()
    emulated = {**OPTIONS["fedface"], "moment": {**MOMENT, "emulate_noise": True}}
    with pytest.raises(ConfigError, match="emulate_noise"):
        METHODS["fedface"].contribution_layout(replace(task, options=emulated), TINY.part(), DIM)


def test_a_device_without_an_answer_sends_zeros_and_stays_where_it_is() -> None:
    """A coordinator that answers nothing leaves moments unused: no error, no step."""
    task = task_of("fedface")
    _, state = start_of(task)
    mute = replace(state, arrays={"momentum": state.arrays["momentum"]})
    output = device(task, "phone0", mute)
    lane = output.contribution.vector[output.contribution.layout.slices["moment"]]
    np.testing.assert_array_equal(lane, 0.0)
    assert moments.OWN not in output.private


def test_the_lane_has_length_one() -> None:
    w = np.random.default_rng(2).normal(size=(1, DIM))
    unit = w[0] / np.linalg.norm(w[0])
    np.testing.assert_allclose(device_moment(w), pack_symmetric(np.outer(unit, unit)), atol=1e-7)


def test_under_masked_arithmetic_the_own_term_comes_out_to_a_step_of_the_ring() -> None:
    """The lane is planned like any other update lane: rounded to 2^-16, summed modulo 2^32, opened, own term out."""
    task = task_of("fedface")
    method, state = start_of(task)
    lanes = ContributionMap(method.contribution_layout(task, TINY.part(), DIM))
    assert lanes.vector_layout.size == TINY.part().size + packed_size(DIM)
    numbers = NumberFormat(ring_bits=32, frac_bits=16, l2_clip=100.0, coordinate_clip=1.0, max_weight=4)
    outputs = [device(task, phone, state) for phone in CROPS]
    total = np.zeros(lanes.vector_layout.num_words, np.uint32)
    for i, output in enumerate(outputs):
        rounding = WordStream(bytes([i]) * 32)
        total += encode(lanes.addends(output.contribution), lanes.vector_layout, numbers, b"R" * 32, rounding)
    opened = lanes.total(decode(total, lanes.vector_layout, numbers, b"R" * 32, len(outputs)))
    own, *others = [output.private[moments.OWN].astype(np.float64) for output in outputs]
    # Each device's rounding errs by less than a step of 2^-16, times its weight of three images.
    np.testing.assert_allclose(opened["moment"] - own, np.sum(others, axis=0), atol=len(outputs) * 3 * 2.0**-16)


def test_operators_and_owners_are_told_what_a_sum_of_moments_shows() -> None:
    task = task_of("fedface")
    layout = METHODS["fedface"].contribution_layout(task, TINY.part(), DIM)
    assert "sum of second moments" in " ".join(disclosures(task))
    assert "whether somebody" in " ".join(disclosure(task, layout, num_images=3, min_cohort=3))
    with pytest.raises(ConfigError, match=r'allow_reveal = \["class_moment"\]'):
        check_agreed(task, layout, Agreement(min_cohort=3))
    check_agreed(task, layout, Agreement(min_cohort=3, allow_reveal=("class_moment",)))


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_all_devices_agree_on_what_is_asked_for(name: str) -> None:
    """A server that asks one device alone for its moment would find its template in the sum: it gets no sum."""
    method, state = METHODS[name], run(replace(task_of(name), rounds=3)).state
    told, alike = method.reply(state, "phone0"), method.requirements(task_of(name)).shared_reply
    assert {moments.MOMENT, moments.WANTED} <= told.keys()
    agreed = shared_words(told, alike)
    assert agreed == shared_words(method.reply(state, "phone1"), alike)
    for shared in moments.SHARED:
        assert shared_words({**told, shared: 1 - told[shared]}, alike) != agreed


@pytest.mark.parametrize("form", ["fedface", "fedgc", "fedface's steps"])
def test_what_a_phone_takes_out_of_a_sum_is_what_it_sent_however_long_its_update_was(form: str) -> None:
    """Moments under one clip with the update were cut with it, and the phone subtracted them as they had been."""
    name = form.partition("'")[0]
    task = task_of(name)
    if form == name:
        options = {each: value for each, value in OPTIONS[name].items() if each == "identities"}
        task = replace(task, options={**options, "private_form": "everybody"})
    part = TINY.part()
    layout = METHODS[name].contribution_layout(task, part, DIM)
    config = plan_round(task, layout, RoundIds(bytes(16), RoundNumber(1), AttemptNumber(1), bytes(32), bytes(32)))
    sent = {lane.name: np.full(lane.size, 1 / np.sqrt(lane.size), np.float32) for lane in layout.summed}
    sent |= {"delta": np.full(part.size, 3 * task.privacy.l2_clip / np.sqrt(part.size), np.float32)}
    mapping, total = ContributionMap(layout), EmulatedSum(config)
    for _ in range(3):
        total.add(mapping.addends(layout.pack(sent)), DpSpec(), np.random.default_rng(0).bytes)
    summed = mapping.total(total.open(0.0))
    sums = [lane.name for lane in layout.summed if "moment" in lane.name and lane.size > 1]
    assert sums
    for each in sums:
        np.testing.assert_allclose(summed[each], 3 * sent[each], atol=1e-3)
    assert np.linalg.norm(summed["delta"] / 3) == pytest.approx(task.privacy.l2_clip, rel=1e-3)
