"""What a server tells is used only in the task's form: each method says what it expected, and repeats no number."""

from __future__ import annotations

import numpy as np
import pytest

from mien.contribution import Arrays
from mien.errors import CorruptDataError
from mien.methods import METHODS
from mien.methods.base import DeviceInput
from mien.methods.check_reply import told
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.tiny import made_up_crops, tiny_cnn

TINY = tiny_cnn()
PART = TINY.part()
DIM = 8
SHOWN = PrivacySpec(("class_embeddings",), 2, secure_aggregation="off")
PLAIN = PrivacySpec(min_cohort=2, secure_aggregation="off")
MOMENT = {"moment": {"every": 1}, "private_form": "hinge"}


def test_an_array_of_the_right_form_is_given_as_it_is() -> None:
    rows = np.ones((3, 2), np.float32)
    assert told({"rows": rows}, "rows", (None, 2)) is rows
    assert told({"rows": rows}, "others", (None, 2)) is None


@pytest.mark.parametrize(
    "values",
    [
        np.full((1, 2), np.nan, np.float32),
        np.full((1, 2), np.inf, np.float32),
        np.ones(2, np.float32),
        np.ones((1, 1, 2), np.float32),
        np.ones((0, 2), np.float32),
        np.ones((1, 3), np.float32),
        np.ones((1, 2), np.int64),
        np.float32(7),
    ],
)
def test_an_array_of_another_form_is_refused(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    with pytest.raises(CorruptDataError, match=r"'rows' in another form .* any number x 2 finite numbers") as caught:
        told({"rows": np.asarray(values)}, "rows", (None, 2))
    assert "array" not in caught.value.message


@pytest.mark.parametrize(
    ("method", "options", "privacy", "array", "size"),
    [
        ("pfm_fv", {"validation": "off", "loss": "positive"}, PLAIN, "round", 1),
        ("pfm_fv", {"validation": "off", "loss": "positive"}, PLAIN, "momentum", PART.size),
        ("mime", {}, PLAIN, "momentum", PART.size),
        ("scaffold", {}, PLAIN, "control", PART.size),
        ("fedface", {}, SHOWN, "class_embedding", DIM),
        ("fedaws", {}, SHOWN, "class_embedding", DIM),
        ("fedgc", {}, SHOWN, "class_embeddings", DIM),
        ("fedface", MOMENT, PrivacySpec(("class_moment",), 3), "moment", DIM * (DIM + 1) // 2),
        ("fedface", MOMENT, PrivacySpec(("class_moment",), 3), "moment_number", 1),
        ("fedface", MOMENT, PrivacySpec(("class_moment",), 3), "moment_wanted", 1),
    ],
)
def test_every_method_refuses_what_has_another_form(
    method: str, options: dict[str, object], privacy: PrivacySpec, array: str, size: int
) -> None:
    task = TaskSpec(
        "told",
        method=method,
        cohort=CohortSpec(size=3, min_reports=3),
        local=LocalSpec(lr=0.05, flip=False),
        privacy=privacy,
        options=options,
    )
    numbers: Arrays = {name: np.ones(1, np.float32) for name in ("moment_number", "moment_devices", "moment_wanted")}
    for shape in ((0,), (1, size), (size + 1,), (), (2, 1, size)):
        reply = {**numbers, "moment": np.ones(DIM * (DIM + 1) // 2, np.float32), array: np.ones(shape, np.float32)}
        inp = DeviceInput(task, PART, DIM, TINY.theta, made_up_crops(2, seed=1), reply=reply)
        with pytest.raises(CorruptDataError, match=f"'{array}' in another form than this task's, which is {size} "):
            METHODS[method].device_round(inp, TINY.runtime())


def test_a_sum_that_is_not_told_is_not_stepped_against() -> None:
    task = TaskSpec(
        "told",
        method="fedface",
        cohort=CohortSpec(size=3, min_reports=3),
        local=LocalSpec(lr=0.05, flip=False),
        privacy=PrivacySpec(("class_moment",), 3),
        options=MOMENT,
    )
    reply = {name: np.ones(1, np.float32) for name in ("moment_number", "moment_devices", "moment_wanted")}
    inp = DeviceInput(task, PART, DIM, TINY.theta, made_up_crops(2, seed=1), reply=reply)
    with pytest.raises(CorruptDataError, match="not 'moment' itself"):
        METHODS["fedface"].device_round(inp, TINY.runtime())
