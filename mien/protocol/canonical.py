"""Canonical JSON: the same record gives the same bytes, so that hashes and signatures can cover it."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from mien.errors import CorruptDataError
from mien.log.chain import canonical_json
from mien.specs import ModelSpec, TaskSpec, from_mapping, to_mapping

if TYPE_CHECKING:
    from mien.layout import ParameterLayout

MAX_JSON_BYTES = 1 << 20


def to_canonical_json(value: object) -> bytes:
    """Return UTF-8 JSON with sorted keys, no spaces, and no NaN or infinity."""
    return canonical_json(value)


def parse_json(data: bytes, *, what: str, remedy: str = "fetch it again") -> Any:
    """Return the value in UTF-8 JSON of at most 1 MiB; raises CorruptDataError naming `what` and the `remedy`."""
    if len(data) > MAX_JSON_BYTES:
        raise CorruptDataError(f"{what} has {len(data)} bytes; the limit is {MAX_JSON_BYTES}")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{what} is not JSON; {remedy}") from error
    return _refuse_unwritable(value, what, remedy)


def _refuse_unwritable(value: Any, what: str, remedy: str) -> Any:
    """Return `value` unless it holds a number that is NaN or infinite, or half a character.

    Python's parser lets both through, and neither can be hashed or written again.
    """
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise CorruptDataError(f"{what} holds a number that is not finite; {remedy}")
        if isinstance(item, str) and any("\ud800" <= each <= "\udfff" for each in item):
            raise CorruptDataError(f"{what} holds text that is no Unicode; {remedy}")
        stack.extend([*item, *item.values()] if isinstance(item, dict) else item if isinstance(item, list) else ())
    return value


def task_to_json(task: TaskSpec) -> bytes:
    """Return the task's canonical bytes."""
    return to_canonical_json(to_mapping(task))


def task_from_json(data: bytes) -> TaskSpec:
    """Return the task in canonical bytes; raises CorruptDataError or ConfigError."""
    value = parse_json(data, what="task")
    if not isinstance(value, dict):
        raise CorruptDataError("task is not an object; fetch it again")
    return from_mapping(TaskSpec, value)


def task_sha256(task: TaskSpec) -> str:
    """Return the hex digest of the task's canonical bytes."""
    return hashlib.sha256(task_to_json(task)).hexdigest()


def model_to_json(spec: ModelSpec, layout: ParameterLayout) -> bytes:
    """Return a model's description with its layout as canonical bytes."""
    return to_canonical_json({"layout": layout.to_json(), "spec": to_mapping(spec)})


def model_from_json(data: bytes) -> tuple[ModelSpec, ParameterLayout]:
    """Return a model's description and layout; raises CorruptDataError when they do not belong together."""
    from mien.layout import ParameterLayout  # loads numpy, which whoever speaks of tasks and people does without

    value = parse_json(data, what="model manifest")
    if not isinstance(value, dict) or set(value) != {"layout", "spec"}:
        raise CorruptDataError("model manifest needs 'layout' and 'spec'; fetch it again")
    spec, layout = value["spec"], value["layout"]
    if not isinstance(spec, dict) or not isinstance(layout, list) or not all(isinstance(r, dict) for r in layout):
        raise CorruptDataError("model manifest is malformed; fetch it again")
    model, entries = from_mapping(ModelSpec, spec), ParameterLayout.from_json(layout)
    if model.layout_sha256 != entries.sha256:
        raise CorruptDataError("model manifest names another layout than it holds; fetch it again")
    return model, entries
