"""The threshold of a search among so many, for models with and without measured tails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from device_sdk.models.models import KnownModel
from device_sdk.people.enroll import check_stored
from device_sdk.people.enrolled import References, Template
from device_sdk.people.recogniser import operating_point, point_among
from mien.errors import AlreadyExistsError, ConfigError, LowQualityError
from mien.layout import ParameterLayout
from mien.protocol.canonical import model_to_json
from mien.protocol.ids import ModelId
from mien.protocol.names import isolated
from mien.specs import FaceInputSpec, ModelSpec, Threshold

Json = dict[str, Any]

_MODEL: Final = ModelId("a" * 64)
_OTHER: Final = ModelId("b" * 64)
SIZES: Final = (1, 9, 10, 11, 50, 100, 999, 1000, 5000, 20_000, 1_000_000)


def _threshold(fmr: float, value: float, model_id: ModelId = _MODEL) -> Threshold:
    return Threshold(value, fmr, "drawn", 1000, 10**6, model_id, "2026-01-01")


_PAIRS: Final = (_threshold(1e-2, 0.28), _threshold(1e-3, 0.37))
_TAIL: Final = (5e-4, 2e-4, 1e-4, 1e-5, 1e-6, 1e-7)
MODELS: Final = {
    "pairs alone": _PAIRS,
    "a tail": (*_PAIRS, *(_threshold(fmr, 0.37 + 0.02 * n) for n, fmr in enumerate(_TAIL))),
    "a pair's threshold above the tail's": (*_PAIRS, _threshold(5e-4, 0.36), _threshold(1e-5, 0.35)),
    "two of one rate, in no order": (
        _threshold(1e-5, 0.52),
        _threshold(1e-3, 0.38),
        *_PAIRS,
        _threshold(1e-5, 0.5),
    ),
    "another model's": (*_PAIRS, _threshold(1e-6, 0.6, _OTHER)),
    "none strict enough": (_threshold(1e-2, 0.28),),
    "none": (),
}


PEOPLE: Final = {"Ada": (1.0, 0.0, 0.0), "\u05d3\u05e0\u05d4": (0.0, 1.0, 0.0)}
"""Each with one template."""


def search(spec: ModelSpec, layout: ParameterLayout) -> Json:
    """Return thresholds among so many (without `at` there is none at all), and what contradicts two enrolled people."""
    specs = {what: replace(spec, thresholds=own) for what, own in MODELS.items()}
    tail = specs["a tail"]
    unlike_below = operating_point(KnownModel(_MODEL, tail)).value
    alike_from = point_among(KnownModel(_MODEL, tail), None, len(PEOPLE) + 1).value
    cosines = [(a, b) for a in (0.1, unlike_below - 0.01, unlike_below, 0.6) for b in (0.1, alike_from, 0.59, 0.61)]
    return {
        "model_id": _MODEL,
        "models": [_case(what, each, layout) for what, each in specs.items()],
        "stored": {
            "spec_json": model_to_json(tail, layout).decode(),
            "people": [[name, template] for name, template in PEOPLE.items()],
            "cases": [_stored(own, a, b, unlike_below, alike_from) for own in (None, "Ada") for a, b in cosines],
        },
    }


def _case(what: str, spec: ModelSpec, layout: ParameterLayout) -> Json:
    case: Json = {"what": what, "spec_json": model_to_json(spec, layout).decode(), "at": []}
    for size in SIZES:
        try:
            at = point_among(KnownModel(_MODEL, spec), None, size)
        except ConfigError:
            continue
        case["at"].append({"enrolled": size, "value": at.value, "fpir": at.fpir, "too_many": bool(at.too_many)})
    return case


def _stored(own: str | None, a: float, b: float, unlike_below: float, alike_from: float) -> Json:
    template = np.array((a, b, (1 - a * a - b * b) ** 0.5), np.float32)
    spec = FaceInputSpec(dim=3)
    known = References(_MODEL, tuple(PEOPLE), np.array(list(PEOPLE.values()), np.float32))
    raised, named = "", []
    try:
        check_stored(
            own or "Cy",
            own,
            Template.of(template[None], _MODEL, spec),
            known,
            unlike_below=unlike_below,
            alike_from=alike_from,
        )
    except (LowQualityError, AlreadyExistsError) as error:
        raised, named = error.code, [name for name in PEOPLE if name != own and isolated(name) in error.message]
    return {"own": own, "template": template.tobytes().hex(), "raised": raised, "named": named}
