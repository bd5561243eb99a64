"""A task is judged when it is submitted, not on every phone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods import METHODS
from mien.protocol.canonical import model_to_json
from mien.rounds.plan import check_hidden, check_reply, plan_task, with_median
from mien.secagg.planner import fewest_hidden
from mien.specs import FaceInputSpec, ModelSpec, TaskSpec, from_mapping
from tests.tiny import SHARD

LAYOUT = ParameterLayout((ParameterEntry("trunk.weight", (4, 3)), ParameterEntry("tail.weight", (5,))))
SPEC_JSON = model_to_json(
    ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=8), "made up", "none", ("tail.*",)), LAYOUT
)


def task(**fields: object) -> TaskSpec:
    return from_mapping(TaskSpec, {"name": "t", "privacy": {"min_cohort": 4}, **fields})


def test_a_plan_trains_the_models_own_part_unless_told_otherwise() -> None:
    assert plan_task(task(), SPEC_JSON, public_shard=SHARD).part.names == ("tail.weight",)
    told = plan_task(task(trainable=["trunk.*"]), SPEC_JSON, public_shard=SHARD)
    assert told.part.names == ("trunk.weight",)


def test_a_method_that_needs_public_faces_is_refused_without_them() -> None:
    with pytest.raises(ConfigError, match="model import --public"):
        plan_task(task(), SPEC_JSON, public_shard=None)


def test_the_published_form_needs_none() -> None:
    revealing = task(privacy={"min_cohort": 4, "reveals": ["class_embeddings"]})
    plan = plan_task(revealing, SPEC_JSON, public_shard=None)
    assert [lane.name for lane in plan.contribution.revealed] == ["class_embedding"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"method": "fedfoo"}, "known methods"),
        ({"options": {"margn": 1.0}}, "margin"),
        ({"trainable": ["tial.*"]}, "tial"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        plan_task(task(**fields), SPEC_JSON, public_shard=SHARD)


def test_labelled_devices_are_for_a_method_that_tells_them_from_others() -> None:
    cohort = {"must_include": {"labelled": 1}}
    plan = plan_task(task(method="fedfr_uda", cohort=cohort), SPEC_JSON, public_shard=None)
    assert plan.task.cohort.min_labelled == 1
    assert fewest_hidden(plan.task) == plan.task.cohort.min_reports - 1
    for method in ("fedavg", "fedfr", "fedgc"):
        with pytest.raises(ConfigError, match=f"method {method} trains all of its devices alike; leave it out"):
            plan_task(task(method=method, cohort=cohort), SPEC_JSON, public_shard=SHARD)


@pytest.mark.parametrize(("min_reports", "is_refused"), [(16, True), (17, False)])
def test_a_task_whose_sources_leave_too_few_to_hide_among_is_refused(min_reports: int, is_refused: bool) -> None:
    cohort = {"size": 20, "min_reports": min_reports, "must_include": {"labelled": 1}}
    made = task(method="fedfr_uda", cohort=cohort, privacy={"min_cohort": 16})
    plan_task(made, SPEC_JSON, public_shard=None)  # one of before this rule goes on
    if is_refused:
        words = "^1 of the 16 devices .* are sources .*the others hide among 15, fewer than .*cohort.min_reports to 17"
        with pytest.raises(ConfigError, match=words):
            check_hidden(made)
    else:
        check_hidden(made)
    check_hidden(replace(made, cohort=replace(made.cohort, must_include=None)))


def test_a_reply_as_long_as_the_trained_part_is_streamed() -> None:
    layout = ParameterLayout((ParameterEntry("tail.weight", (1000, 1000)),))
    spec_json = model_to_json(
        ModelSpec("tiny", layout.sha256, FaceInputSpec(dim=8), "made up", "none", ("tail.*",)), layout
    )
    assert plan_task(task(method="scaffold"), spec_json, public_shard=SHARD).part.size == 10**6


def test_a_method_that_tells_devices_more_than_they_take_is_refused() -> None:
    plan = plan_task(task(method="scaffold"), SPEC_JSON, public_shard=SHARD)
    talkative = replace(plan.method, reply=lambda _state, _device: {"control": np.zeros(10**6, np.float32)})
    with pytest.raises(ConfigError, match=r"tells each device 4\.0 MB"):
        check_reply(replace(plan, method=talkative))


def test_a_method_that_tells_one_device_what_others_are_not_told_is_refused() -> None:
    plan = plan_task(task(method="scaffold"), SPEC_JSON, public_shard=SHARD)
    partial = replace(plan.method, reply=lambda _state, _device: {"mine": np.zeros(1, np.float32)})
    with pytest.raises(ConfigError, match=r"tells devices mine, which is neither in .* shared_reply nor a lane"):
        check_reply(replace(plan, method=partial))


LARGE = {"size": 240, "min_reports": 192}
NOISE = {"mechanism": "skellam", "noise_multiplier": 2.0, "epsilon": 8.0, "delta": 1e-5, "max_participations": 1}


def test_a_cohort_that_is_large_enough_is_dealt_into_groups_with_a_median() -> None:
    dealt = with_median(task(method="fedavg", cohort=LARGE), METHODS["fedavg"])
    assert (dealt.privacy.groups, dealt.privacy.group_mean) == (3, "median")
    assert plan_task(dealt, SPEC_JSON, public_shard=None).task == dealt


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "cohort": {**LARGE, "min_reports": 191}},
        {"method": "fedavg", "cohort": LARGE, "privacy": {"min_cohort": 65}},
        {"method": "fedavg", "cohort": LARGE, "privacy": {"secure_aggregation": "off"}},
        {"method": "fedavg", "cohort": LARGE, "trainable": ["tail.*"], "privacy": {"max_weight": 1, "dp": NOISE}},
        {"method": "statistics", "cohort": LARGE},
        {"method": "fedgc", "cohort": LARGE},
        {"method": "fedfr_uda", "cohort": LARGE},
    ],
)
def test_no_cohort_is_dealt_where_sums_would_tell_more_or_have_no_middle(fields: dict[str, object]) -> None:
    spec = from_mapping(TaskSpec, {"name": "t", **fields})
    assert with_median(spec, METHODS[spec.method]) == spec
