"""Canonical JSON from a server: what could not be hashed or written again is refused when it is read."""

from __future__ import annotations

import json

import pytest

from mien.errors import ConfigError, CorruptDataError, MienError
from mien.layout import ParameterEntry, ParameterLayout
from mien.protocol.canonical import model_from_json, model_to_json, parse_json, task_from_json, to_canonical_json
from mien.secagg.planner import statement_sha256
from mien.specs import FaceInputSpec, ModelSpec

LAYOUT = ParameterLayout((ParameterEntry("a", (2,)),))
SPEC = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(), "made up", "none", ("*",))


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"\udfff": 1}', r'[{"a": ["b\ud83d"]}]'])
def test_half_characters_are_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="no Unicode"):
        parse_json(text.encode(), what="task")
    assert parse_json(rb'"\ud83d\ude00"', what="task") == "\U0001f600"


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", '{"a": {"b": 1e999}}'])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(CorruptDataError, match="not finite"):
        parse_json(text.encode(), what="task")


def test_a_task_of_half_characters_is_refused() -> None:
    with pytest.raises(CorruptDataError):
        task_from_json(b'{"name": "t", "trainable": ["\\ud800"]}')


@pytest.mark.parametrize(
    ("at", "value"),
    [
        *((("input", "dim"), value) for value in (2**16 + 1, 2**40, 0, -1)),
        *((("input", "mean"), value) for value in (1e39, -1e39)),
        (("input", "scale"), 1e39),
        (("source",), "\ud800"),
    ],
)
def test_a_model_that_no_round_could_agree_on_is_refused(at: tuple[str, ...], value: object) -> None:
    told = json.loads(model_to_json(SPEC, LAYOUT))
    place = told["spec"]
    for name in at[:-1]:
        place = place[name]
    place[at[-1]] = value
    with pytest.raises(MienError) as refused:
        model_from_json(json.dumps(told).encode())
    assert isinstance(refused.value, ConfigError | CorruptDataError)


def test_the_widest_face_input_that_is_taken_has_a_statement() -> None:
    told = json.loads(model_to_json(SPEC, LAYOUT))
    told["spec"]["input"].update(dim=2**16, mean=-3e38, scale=3e38)
    spec, _ = model_from_json(to_canonical_json(told))
    assert len(statement_sha256("fedavg", spec)) == 32
