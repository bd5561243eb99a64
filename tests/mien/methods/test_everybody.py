"""FedFace's softmax against everybody: what is sent and kept, what is taken out of the sums, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from device_sdk.runtimes.forms import form_of
from mien.contribution import Arrays, Total
from mien.errors import ConfigError, CorruptDataError
from mien.methods import METHODS
from mien.methods.base import DeviceInput, DeviceOutput, ServerState, shared_words
from mien.methods.everybody import EverybodySpec
from mien.methods.spreadout import device_moment, packed_size
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.base import SequentialEngine
from simulation.engines.engine import Cohort, run_task
from tests.mien.methods.test_fedface import Watched
from tests.tiny import made_up_crops, tiny_cnn

pytestmark = pytest.mark.numerics

FEDFACE = METHODS["fedface"]
TINY, DIM = tiny_cnn(8), 8
PART = TINY.part()
CROPS = {f"phone{i}": made_up_crops(3, seed=i) for i in range(4)}
TASK = TaskSpec(
    name="everybody",
    method="fedface",
    rounds=3,
    cohort=CohortSpec(size=4, min_reports=3),
    local=LocalSpec(lr=0.05, flip=False),
    privacy=PrivacySpec(reveals=("class_moment",), min_cohort=3),
    options={"private_form": "everybody", "everybody": {"scale": 8.0}},
)


def input_of(name: str, state: ServerState, private: Arrays | None = None, **changes: Any) -> DeviceInput:
    reply = FEDFACE.reply(state, name)
    inp = DeviceInput(TASK, PART, DIM, state.theta, CROPS[name], private=private or {}, reply=reply)
    return replace(inp, **changes)


def embedded(name: str, state: ServerState) -> np.ndarray[Any, np.dtype[np.float64]]:
    mean = TINY.runtime().embed(state.theta, CROPS[name]).astype(np.float64).mean(axis=0)
    unit: np.ndarray[Any, np.dtype[np.float64]] = mean / np.linalg.norm(mean)
    return unit


def opened(names: tuple[str, ...] = tuple(CROPS)) -> tuple[ServerState, dict[str, DeviceOutput]]:
    """Return the state after a first round of these phones, and what each of them made."""
    state = FEDFACE.server_start(TASK, PART, TINY.theta)
    outputs = {name: FEDFACE.device_round(input_of(name, state), TINY.runtime()) for name in names}
    total = Total.empty(FEDFACE.contribution_layout(TASK, PART, DIM))
    for output in outputs.values():
        total = total.plus(output.contribution)
    return FEDFACE.server_step(TASK, PART, state, total, {}), outputs


def test_a_contribution_holds_sums_and_nothing_else() -> None:
    layout = FEDFACE.contribution_layout(TASK, PART, DIM)
    assert layout.revealed == ()
    assert [(lane.name, lane.size) for lane in layout.summed][-2:] == [
        ("moment_mean", DIM),
        ("moment", packed_size(DIM)),
    ]
    assert FEDFACE.requirements(TASK).objective == "moment_softmax"
    assert not FEDFACE.requirements(TASK).public_faces


@pytest.mark.parametrize(
    ("reveals", "options", "objective"),
    [
        (("class_moment",), {}, "moment_softmax"),
        (("class_moment",), {"moment": {"every": 2}}, "cosface"),
        (("class_moment",), {"private_form": "softmax"}, "cosface"),
        ((), {}, "cosface"),
        (("class_embeddings",), {}, "positive_hinge"),
    ],
    ids=["moments", "moments for steps", "named", "nothing", "embeddings"],
)
def test_what_a_task_agreed_to_chooses_the_form(
    reveals: tuple[str, ...], options: dict[str, Any], objective: str
) -> None:
    task = replace(TASK, privacy=PrivacySpec(reveals=reveals, min_cohort=3), options=options)
    assert FEDFACE.requirements(task).objective == objective


def test_the_first_round_takes_others_to_lie_evenly_and_opens_the_moments() -> None:
    runtime = Watched(TINY.runtime())
    state = FEDFACE.server_start(TASK, PART, TINY.theta)
    output = FEDFACE.device_round(input_of("phone0", state), runtime)
    own = embedded("phone0", state)
    ((_, objective),) = runtime.asked
    np.testing.assert_allclose(objective.fixed["class_embeddings"], own[None], atol=1e-6)
    np.testing.assert_array_equal(objective.fixed["mean"], np.zeros(DIM))
    np.testing.assert_allclose(objective.fixed["covariance"], np.eye(DIM) / DIM)
    assert objective.constants["log_others"] == pytest.approx(math.log(TASK.cohort.min_reports - 1))
    lanes = {name: output.contribution.vector[place] for name, place in output.contribution.layout.slices.items()}
    np.testing.assert_allclose(lanes["moment_mean"], own, atol=1e-6)
    np.testing.assert_allclose(lanes["moment"], device_moment(own[None]), atol=1e-6)
    after, _ = opened()
    assert np.abs(after.theta - TINY.theta).max() > 1e-4, "or phones would keep out of the next round over the model"
    assert (after.rounds, after.arrays["moment_number"][0], after.arrays["moment_devices"][0]) == (1, 1, 4)
    np.testing.assert_array_equal(after.arrays["earlier_part"], PART.gather(TINY.theta))


def test_a_phone_trains_against_the_others_without_its_own_part() -> None:
    state, outputs = opened()
    runtime = Watched(TINY.runtime())
    FEDFACE.device_round(input_of("phone1", state, outputs["phone1"].private), runtime)
    ((crops, objective),) = runtime.asked
    np.testing.assert_array_equal(crops, CROPS["phone1"])
    first = replace(state, theta=TINY.theta)
    others = np.stack([embedded(name, first) for name in CROPS if name != "phone1"])
    np.testing.assert_allclose(objective.fixed["class_embeddings"], embedded("phone1", first)[None], atol=1e-6)
    np.testing.assert_allclose(objective.fixed["mean"], others.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(objective.fixed["covariance"], np.cov(others.T, bias=True), atol=1e-6)
    assert objective.constants["log_others"] == pytest.approx(math.log(3))
    assert objective.private == {}
    assert form_of(objective).name == FEDFACE.requirements(TASK).objective, "phones are asked by the graphs they have"


@pytest.mark.parametrize("kept", [False, True], ids=["never there", "in an earlier sum"])
def test_a_phone_that_is_not_in_the_sum_trains_against_all_of_it(kept: bool) -> None:
    state, outputs = opened(("phone0", "phone1", "phone2"))
    private: Arrays = {}
    if kept:
        private = {**outputs["phone0"].private, "own_moment_number": np.array([0], np.float32)}
    runtime = Watched(TINY.runtime())
    FEDFACE.device_round(input_of("phone3", state, private), runtime)
    ((_, objective),) = runtime.asked
    first = replace(state, theta=TINY.theta)
    others = np.stack([embedded(f"phone{i}", first) for i in range(3)])
    np.testing.assert_allclose(objective.fixed["mean"], others.mean(axis=0), atol=1e-6)
    assert objective.constants["log_others"] == pytest.approx(math.log(3))


@pytest.mark.parametrize("was_there", [False, True])
def test_a_phones_own_class_embedding_is_of_the_model_that_the_sums_are_of(was_there: bool) -> None:
    """The model has moved on since: a phone that is in the sum kept what it put in, another embeds with the old one."""
    state, outputs = opened(tuple(CROPS) if was_there else ("phone0", "phone1", "phone2"))
    then = embedded("phone3", replace(state, theta=TINY.theta))
    runtime = Watched(TINY.runtime())
    private = outputs["phone3"].private if was_there else {}
    output = FEDFACE.device_round(input_of("phone3", state, private), runtime)
    ((_, objective),) = runtime.asked
    np.testing.assert_allclose(objective.fixed["class_embeddings"], then[None], atol=1e-6)
    added = output.contribution.vector[output.contribution.layout.slices["moment_mean"]]
    np.testing.assert_allclose(added, embedded("phone3", state), atol=1e-6)
    assert np.abs(added - then).max() > 1e-3
    assert runtime.num_embedded == len(CROPS["phone3"]) * (1 if was_there else 2)


def test_several_people_of_a_phone_count_as_one_and_are_told_apart() -> None:
    state = FEDFACE.server_start(TASK, PART, TINY.theta)
    runtime = Watched(TINY.runtime())
    labels = np.array([0, 1, 1])
    output = FEDFACE.device_round(input_of("phone0", state, labels=labels), runtime)
    ((_, objective),) = runtime.asked
    emb = TINY.runtime().embed(state.theta, CROPS["phone0"]).astype(np.float64)
    w = np.stack([emb[0], emb[1:].mean(axis=0)])
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    np.testing.assert_allclose(objective.fixed["class_embeddings"], w, atol=1e-6)
    np.testing.assert_array_equal(objective.per_crop["target"], [[1, 0], [0, 1], [0, 1]])
    vector, slices = output.contribution.vector, output.contribution.layout.slices
    np.testing.assert_allclose(vector[slices["moment_mean"]], w.mean(axis=0), atol=1e-6)
    assert np.linalg.norm(vector[slices["moment"]]) <= 1 + 1e-6


def test_later_rounds_step_and_open_the_next_moments() -> None:
    run = run_task(TASK, PART, DIM, TINY.theta, Cohort(CROPS), SequentialEngine(TINY.runtime()))
    assert all(math.isfinite(record.loss_after) for record in run.records)
    assert np.abs(run.state.theta - TINY.theta).max() > 1e-4
    assert run.state.arrays["moment_number"][0] == 3
    for name in CROPS:
        assert set(run.cohort.private[name]) == {"class_embedding", "own_moment_number"}
        assert run.cohort.private[name]["own_moment_number"][0] == 3


def test_masked_sums_give_the_same_model() -> None:
    exact, ring = (
        run_task(TASK, PART, DIM, TINY.theta, Cohort(CROPS), SequentialEngine(TINY.runtime()), sums=sums)
        for sums in ("exact", "ring")
    )
    moved = np.abs(exact.state.theta - TINY.theta).max()
    np.testing.assert_allclose(ring.state.theta, exact.state.theta, atol=1e-2 * moved)


def test_all_devices_are_told_the_same_and_agree_on_it() -> None:
    state, _ = opened()
    shared = FEDFACE.requirements(TASK).shared_reply
    replies = [FEDFACE.reply(state, name) for name in ("phone0", "phone1")]
    assert (
        {"moment", "moment_mean", "moment_number", "moment_devices", "earlier_part"} <= set(replies[0]) <= set(shared)
    )
    assert shared_words(replies[0], shared) == shared_words(replies[1], shared)
    other = {**replies[0], "moment_mean": replies[0]["moment_mean"] + 1}
    assert shared_words(other, shared) != shared_words(replies[0], shared)


@pytest.mark.parametrize("left_out", ["moment", "moment_mean", "earlier_part"])
def test_a_server_that_keeps_a_sum_to_itself_is_left(left_out: str) -> None:
    state, _ = opened()
    inp = input_of("phone0", state)
    told = {name: values for name, values in inp.reply.items() if name != left_out}
    with pytest.raises(CorruptDataError, match="not what they are"):
        FEDFACE.device_round(replace(inp, reply=told), TINY.runtime())


def test_a_sum_of_nobody_else_is_refused() -> None:
    state, outputs = opened(("phone0",))
    with pytest.raises(CorruptDataError, match="nobody else"):
        FEDFACE.device_round(input_of("phone0", state, outputs["phone0"].private), TINY.runtime())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": PrivacySpec(min_cohort=3)}, r'agree with privacy\.reveals = \["class_moment"\]'),
        (
            {"privacy": PrivacySpec(reveals=("class_moment",), min_cohort=2, secure_aggregation="off")},
            "Turn secure aggregation on",
        ),
        (
            {
                "privacy": PrivacySpec(reveals=("class_moment",), min_cohort=3, groups=2),
                "cohort": CohortSpec(size=8, min_reports=6),
            },
            r"set privacy\.groups to 1",
        ),
        ({"rounds": 1}, "Set it to 2 or more"),
        ({"options": {**TASK.options, "moment": {"every": 1}}}, "leave them out"),
        ({"options": {**TASK.options, "public_step": {"lr": 1.0}}}, "leave them out"),
    ],
    ids=["unsaid", "plain", "groups", "one round", "moment", "public step"],
)
def test_tasks_that_would_show_more_or_do_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FEDFACE.contribution_layout(replace(TASK, **changes), PART, DIM)


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"scale": math.inf}, {"margin": -0.1}, {"margin": 1.0}])
def test_scales_and_margins_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=rf"options\.everybody\.{name}"):
        EverybodySpec(**wrong)
