"""Who is asked for what: devices that embed only need no graph that trains, and none is asked that lacks the method."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.rounds.engine import Caller
from mien.evaluation.rollout_spec import RollOutSpec
from mien.methods import METHODS
from mien.protocol.canonical import model_to_json
from mien.protocol.rounds import BlobId
from mien.rounds.plan import TaskPlan, plan_task
from mien.rounds.rollouts import evaluation_task
from mien.specs import CohortSpec, DpSpec, MustInclude, PrivacySpec, TaskSpec
from tests.tiny import tiny_adapted, tiny_gated

TINY = tiny_adapted()
TASK = TaskSpec(
    "sums",
    method="statistics",
    rounds=1,
    options={"min_people": 80},
    privacy=PrivacySpec(max_weight=1, reveals=("class_moment",)),
)


@pytest.fixture(scope="module")
def plan() -> TaskPlan:
    return plan_task(TASK, model_to_json(TINY.spec, TINY.layout), public_shard=None)


def test_statistics_need_no_graph_that_trains(plan: TaskPlan) -> None:
    """A phone without torch that has graphs of another part can embed with the model all the same."""
    phone = Caller("a" * 32, "p", ("tiny_adapter",), engines=("onnxruntime",), parts={"e" * 64: frozenset({"cosface"})})
    assert phone.can_do(plan)
    training = TaskSpec("trains", method="fedavg", rounds=1)
    assert not phone.can_do(plan_task(training, model_to_json(TINY.spec, TINY.layout), public_shard=None))


def test_a_program_that_lacks_the_method_is_not_asked(plan: TaskPlan) -> None:
    """As the JVM client, which says at check-in which methods it has."""
    jvm = Caller("b" * 32, "p", ("tiny_adapter",), methods=("fedavg", "fedprox", "fedface"))
    assert not jvm.can_do(plan)
    assert Caller("c" * 32, "p", ("tiny_adapter",), methods=tuple(METHODS)).can_do(plan)
    assert not Caller("d" * 32, "p", ("other",), methods=tuple(METHODS)).can_do(plan)


def test_sources_do_not_count_towards_an_owners_floor() -> None:
    """Whoever runs them takes their updates out of the sum."""
    cohort = CohortSpec(size=20, min_reports=16, must_include=MustInclude(2))
    adapts = TaskSpec("adapts", method="fedfr_uda", cohort=cohort)
    planned = plan_task(adapts, model_to_json(TINY.spec, TINY.layout), public_shard=None)
    assert Caller("a" * 32, "p", min_cohort=14).agrees_to_sums_of(planned)
    assert not Caller("a" * 32, "p", min_cohort=15).agrees_to_sums_of(planned)


@pytest.mark.parametrize(
    ("privacy", "is_limited"),
    [
        (PrivacySpec(), True),
        (PrivacySpec(secure_aggregation="off"), False),
        (PrivacySpec(max_weight=1, dp=DpSpec("skellam", 4.0, 8.0, 1e-6, max_participations=9)), False),
        (PrivacySpec(max_weight=1, dp=DpSpec("skellam", 4.0, 99.0, 1e-6, max_participations=9)), True),
        (PrivacySpec(max_weight=1, dp=DpSpec("central_gaussian", 4.0, 8.0, 1e-6, max_participations=9)), True),
    ],
    ids=["masked", "plain", "noised", "hardly noised", "noised by the server"],
)
def test_who_says_that_a_model_is_used_up_is_asked_for_what_its_phone_does_not_count(
    privacy: PrivacySpec, is_limited: bool
) -> None:
    """Its own program counts masked sums without noise of phones' own alone (`device_sdk.rounds.attempts`)."""
    task = TaskSpec("trains", method="fedavg", trainable=("*.weight",), privacy=privacy)
    planned = plan_task(task, model_to_json(TINY.spec, TINY.layout), public_shard=None)
    full, tired = (Caller("a" * 32, "p", used_up_models=frozenset({"m" * 64})), Caller("b" * 32, "p", used_up_day=True))
    assert full.has_room_for(planned, "m" * 64) is not is_limited
    assert full.has_room_for(planned, "n" * 64)
    assert tired.has_room_for(planned, "n" * 64) is not is_limited
    assert Caller("c" * 32, "p").has_room_for(planned, "m" * 64), "an older program says nothing"


def test_a_model_that_is_used_up_is_measured_all_the_same_but_not_on_a_day_that_is() -> None:
    """Sums of scores over one model tell of nobody's update; a day's limit is over all sums."""
    asked = evaluation_task(RollOutSpec(cohort=CohortSpec(20, 16)), name="fleet-1", model_id="a" * 64, threshold=0.5)
    measures = plan_task(asked, model_to_json(TINY.spec, TINY.layout), public_shard=BlobId("b" * 64, 8))
    assert Caller("a" * 32, "p", used_up_models=frozenset({"m" * 64})).has_room_for(measures, "m" * 64)
    assert not Caller("a" * 32, "p", used_up_day=True).has_room_for(measures, "m" * 64)


def test_a_mixture_is_for_owners_whose_floor_is_a_tenth_of_its_sums(plan: TaskPlan) -> None:
    """What its phones are told may make ten of them count as little as one."""
    gated = tiny_gated()
    mixture = replace(
        TASK,
        rounds=2,
        cohort=CohortSpec(size=200, min_reports=160),
        privacy=replace(TASK.privacy, min_cohort=160),
        options={**TASK.options, "mixture": True},
    )
    mixed = plan_task(mixture, model_to_json(gated.spec, gated.layout), public_shard=None)
    for floor, is_agreed in ((16, True), (17, False)):
        owner = Caller("e" * 32, "p", min_cohort=floor)
        assert owner.fewest(mixed) == 10 * floor
        assert owner.agrees_to_sums_of(mixed) == is_agreed
        assert owner.fewest(plan) == floor
