"""Records: what each refuses, and that plain data and records convert into each other without loss."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mien.errors import ConfigError
from mien.specs import (
    CohortSpec,
    DeadlineSpec,
    FaceInputSpec,
    LocalSpec,
    ModelSpec,
    MustInclude,
    PrivacySpec,
    ServerSpec,
    TaskSpec,
    Threshold,
    from_mapping,
    to_mapping,
)

TASK: dict[str, Any] = {"name": "demo", "cohort": {"size": 40, "min_reports": 20}}


def test_network_input_by_hand() -> None:
    crop = np.zeros((1, 112, 112, 3), np.uint8)
    crop[0, 0, 0] = (255, 127, 0)
    crop[0, 5, 7] = (1, 2, 3)
    rgb = FaceInputSpec().network_input(crop)
    assert rgb.shape == (1, 3, 112, 112)
    assert rgb.dtype == np.float32
    assert rgb.flags.c_contiguous
    assert rgb[0, :, 0, 0].tolist() == [127.5 / 128, -0.5 / 128, -127.5 / 128]
    assert rgb[0, :, 5, 7].tolist() == [-126.5 / 128, -125.5 / 128, -124.5 / 128]
    bgr = FaceInputSpec(colour="BGR", scale=127.5).network_input(crop)
    np.testing.assert_allclose(bgr[0, :, 0, 0], [-1.0, -0.5 / 127.5, 1.0], rtol=1e-7)


def test_template_of_the_narrow_crop_is_shifted() -> None:
    wide, narrow = FaceInputSpec().template, FaceInputSpec(width=96).template
    assert wide.shape == (5, 2)
    assert wide[0].tolist() == [38.2946, 51.6963]
    np.testing.assert_allclose(wide - narrow, [[8.0, 0.0]] * 5)
    wide[0] = 0
    assert FaceInputSpec().template[0, 0] == 38.2946, "the template was shared"


@pytest.mark.parametrize(
    "crops",
    [
        np.zeros((112, 112, 3), np.uint8),
        np.zeros((1, 3, 112, 112), np.uint8),
        np.zeros((1, 112, 96, 3), np.uint8),
        np.zeros((1, 112, 112, 3), np.float32),
        np.zeros((1, 112, 112, 4), np.uint8),
    ],
)
def test_crops_of_another_form_are_refused(crops: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="align the faces"):
        FaceInputSpec().network_input(crops)


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (FaceInputSpec, {"width": 128}, "128x112"),
        (FaceInputSpec, {"scale": 0.0}, "positive scale"),
        (FaceInputSpec, {"scale": math.nan}, "positive scale"),
        (FaceInputSpec, {"mean": math.inf}, "finite mean"),
        (FaceInputSpec, {"colour": "GBR"}, "RGB or BGR"),
        (FaceInputSpec, {"dim": 0}, "dim is 0"),
        (CohortSpec, {"min_reports": 21}, "between 1 and size"),
        (CohortSpec, {"min_reports": 0}, "between 1 and size"),
        (CohortSpec, {"must_include": MustInclude(17)}, "as few as min_reports \\(16\\) devices"),
        (MustInclude, {"labelled": 0}, "must_include.labelled is 0; it must lie between 1"),
        (TaskSpec, {**TASK, "cohort": {"must_include": {"labeled": 1}}}, "cohort.must_include.labelled'"),
        (
            TaskSpec,
            {
                **TASK,
                "cohort": {"size": 99, "min_reports": 99, "must_include": {}},
                "privacy": {"min_cohort": 33, "groups": 3},
            },
            "privacy.groups is 3: chance deals",
        ),
        (
            TaskSpec,
            {**TASK, "validators": {"size": 16, "must_include": {}}},
            "every validator is labelled already",
        ),
        (CohortSpec, {"size": 2**63}, "at most 1000000"),
        (LocalSpec, {"lr": 1e300}, "at most 1000"),
        (LocalSpec, {"weight_decay": 1e308}, "above 1000"),
        (LocalSpec, {"private_lr": 1e30}, "above 1000"),
        (LocalSpec, {"epochs": 10**12}, "at most 1000"),
        (LocalSpec, {"batch_size": 10**20}, "at most 1000000"),
        (ServerSpec, {"lr": 1e30}, "at most 1000"),
        (TaskSpec, {"name": "t", "population": "../../x"}, "population"),
        (TaskSpec, {"name": "t", "population": "a\x00b"}, "population"),
        (CohortSpec, {"over_selection": 0.9}, "over_selection is 0.9"),
        (CohortSpec, {"over_selection": math.nan}, "over_selection"),
        (DeadlineSpec, {"training_s": 0.0}, "training_s"),
        (DeadlineSpec, {"upload_s": 8 * 86400.0}, "upload_s"),
        (DeadlineSpec, {"selecting_s": math.nan}, "selecting_s"),
        (LocalSpec, {"lr": 0.0}, "lr is 0.0"),
        (LocalSpec, {"lr": math.inf}, "lr is inf"),
        (LocalSpec, {"epochs": 0}, "epochs"),
        (LocalSpec, {"batch_size": -1}, "batch_size"),
        (LocalSpec, {"momentum": 1.0}, "momentum"),
        (LocalSpec, {"weight_decay": -1e-4}, "weight_decay"),
        (LocalSpec, {"weight_decay": math.nan}, "weight_decay"),
        (LocalSpec, {"private_lr": -1.0}, "private_lr"),
        (LocalSpec, {"private_lr": math.nan}, "private_lr"),
        (ServerSpec, {"lr": 0.0}, "lr must be positive"),
        (ServerSpec, {"lr": math.nan}, "lr must be positive"),
        (ServerSpec, {"momentum": 1.0}, "momentum"),
        (PrivacySpec, {"reveals": ("embeddings",)}, "embeddings"),
        (PrivacySpec, {"min_cohort": 1}, "hides nobody"),
        (PrivacySpec, {"max_weight": 0}, "max_weight"),
        (PrivacySpec, {"max_weight": 65536}, "max_weight"),
        (TaskSpec, {**TASK, "name": ""}, "task name"),
        (TaskSpec, {**TASK, "name": "a/b"}, "task name"),
        (TaskSpec, {**TASK, "name": "x" * 81}, "task name"),
        (TaskSpec, {**TASK, "rounds": 0}, "rounds is 0"),
        (TaskSpec, {"name": "demo", "cohort": CohortSpec(min_reports=15)}, "min_reports"),
    ],
)
def test_wrong_values_are_refused_by_name(cls: type[Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_mapping(cls, fields) if cls is TaskSpec else cls(**fields)


@pytest.mark.parametrize(("value", "fmr"), [(1.1, 0.01), (math.nan, 0.01), (0.3, -0.1), (0.3, math.nan)])
def test_thresholds_are_cosines_with_a_rate(value: float, fmr: float) -> None:
    with pytest.raises(ConfigError, match="cosine in"):
        Threshold(value, fmr, "set", 10, 1000, "m" * 64, "2026-01-01")


def test_unknown_fields_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown field 'cohort\.siez'; did you mean 'cohort\.size'"):
        from_mapping(TaskSpec, {"name": "demo", "cohort": {"siez": 4}})
    with pytest.raises(ConfigError, match="known fields: size, min_reports, over_selection"):
        from_mapping(CohortSpec, {"zzz": 4})


def test_a_task_that_needs_no_labelled_device_is_written_as_before_there_were_any() -> None:
    """A phone of an earlier release refuses a field that it does not know: only tasks that need it have one."""
    assert "must_include" not in to_mapping(TaskSpec("demo"))["cohort"]
    source = TaskSpec("demo", cohort=CohortSpec(must_include=MustInclude()))
    assert to_mapping(source)["cohort"]["must_include"] == {"labelled": 1}
    assert from_mapping(TaskSpec, to_mapping(source)) == source


def test_missing_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="field 'name' is missing"):
        from_mapping(TaskSpec, {})


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("rounds", "10", "expected int"),
        ("rounds", True, "expected int"),
        ("rounds", 1.0, "expected int"),
        ("name", 3, "expected str"),
        ("trainable", "embedding.*", "expected tuple"),
        ("trainable", [1], r"trainable\[0\]"),
        ("cohort", 3, "expected a table of size, min_reports"),
        ("local", {"flip": 1}, r"local\.flip"),
        ("local", {"lr": "fast"}, r"local\.lr"),
        ("local", {"lr": True}, r"local\.lr"),
        ("local", {"private_lr": "x"}, r"local\.private_lr"),
        ("options", [1], "options"),
    ],
)
def test_wrong_types_are_refused_by_name(field: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        from_mapping(TaskSpec, {**TASK, field: value})


def test_choices_are_listed() -> None:
    with pytest.raises(ConfigError, match="colour is 'GBR'; allowed: 'RGB', 'BGR'"):
        from_mapping(FaceInputSpec, {"colour": "GBR"})


def test_a_task_from_toml() -> None:
    text = """
        name = "face-1"
        trainable = ["block15.*", "head.*"]
        [cohort]
        size = 20
        min_reports = 16
        over_selection = 1.3
        [local]
        lr = 1
        private_lr = 0.01
        [options]
        margin = 0.9
    """
    task = from_mapping(TaskSpec, tomllib.loads(text))
    assert task.trainable == ("block15.*", "head.*")
    assert task.cohort.num_selected == 26
    assert task.local.lr == 1.0
    assert isinstance(task.local.lr, float)
    assert task.local.private_lr == 0.01
    assert task.options == {"margin": 0.9}
    assert task.deadlines == DeadlineSpec()


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FaceInputSpec().dim = 5  # type: ignore[misc]


finite = st.floats(allow_nan=False, allow_infinity=False)
inputs = st.builds(
    FaceInputSpec,
    width=st.sampled_from([96, 112]),
    colour=st.sampled_from(["RGB", "BGR"]),
    mean=st.floats(-3e38, 3e38),
    scale=st.floats(min_value=1e-3, max_value=1e3),
    dim=st.integers(1, 4096),
)
thresholds = st.builds(
    Threshold, st.floats(-1, 1), st.floats(0, 1), st.text(), st.integers(), st.integers(), st.text(), st.text()
)
models = st.builds(
    ModelSpec,
    st.text(),
    st.text(),
    inputs,
    st.text(),
    st.text(),
    st.lists(st.text(), max_size=3).map(tuple),
    st.lists(thresholds, max_size=2).map(tuple),
)
tasks = st.builds(
    TaskSpec,
    name=st.text("abc-_09", min_size=1, max_size=80).filter(lambda n: n.strip("-_") != ""),
    rounds=st.integers(1, 100_000),
    trainable=st.lists(st.text(), max_size=3).map(tuple),
    cohort=st.builds(CohortSpec, size=st.just(100), min_reports=st.integers(16, 100), over_selection=st.floats(1, 4)),
    local=st.builds(LocalSpec, lr=st.floats(1e-6, 1.0), private_lr=st.none() | st.floats(1e-6, 1.0)),
    options=st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=3),
)


@given(models | tasks)
def test_plain_data_and_records_are_inverse(record: ModelSpec | TaskSpec) -> None:
    data = to_mapping(record)
    assert from_mapping(type(record), data) == record


@given(models)
def test_plain_data_is_plain(record: ModelSpec) -> None:
    def is_plain(value: object) -> bool:
        if isinstance(value, dict):
            return all(isinstance(k, str) and is_plain(v) for k, v in value.items())
        if isinstance(value, list):
            return all(is_plain(v) for v in value)
        return type(value) in (str, int, float, bool)

    assert is_plain(to_mapping(record))


def test_validators_keep_the_floor_of_the_task_and_are_left_out_where_there_are_none() -> None:
    plain = {"name": "t", "method": "pfm_fv", "validators": {"size": 20, "min_reports": 17}}
    task = from_mapping(TaskSpec, plain)
    assert task.validators == CohortSpec(size=20, min_reports=17)
    assert from_mapping(TaskSpec, to_mapping(task)) == task
    assert "validators" not in to_mapping(TaskSpec("t")), "older programs still read tasks without validators"
    with pytest.raises(ConfigError, match=r"validators\.min_reports \(15\) is below privacy\.min_cohort \(16\)"):
        from_mapping(TaskSpec, {**plain, "validators": {"size": 20, "min_reports": 15}})
    with pytest.raises(ConfigError, match=r"validators\.sise"):
        from_mapping(TaskSpec, {**plain, "validators": {"sise": 20}})
