"""A personal model as it lies in the gallery: which model it belongs to, its tensors, a threshold for each person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.errors import CorruptDataError
from mien.protocol.canonical import parse_json
from mien.protocol.tensors import pack_tensors, unpack_metadata, unpack_tensors
from mien.records import from_mapping, to_mapping

if TYPE_CHECKING:
    from mien.methods.personal_branch import PersonalThreshold

Form = Literal["released", "local"]
"""Base of a personal model: the released backbone, or the one that training left on this phone."""

_WHAT: Final = "the personal model"


@dataclass(frozen=True)
class StoredPersonal:
    """Pi (D, D) with its bias (D,); `values` are the trained part of an own backbone, None on the released one.

    `thresholds` are by the person's id in the gallery; they were carried over from `released_threshold`.
    """

    model_id: str
    form: Form
    pi_weight: NDArray[np.float32] = field(repr=False)
    pi_bias: NDArray[np.float32] = field(repr=False)
    values: NDArray[np.float32] | None = field(repr=False)
    thresholds: Mapping[int, PersonalThreshold]
    released_threshold: float

    def to_bytes(self) -> bytes:
        """Return the model as it is sealed."""
        tensors = {"pi_weight": self.pi_weight, "pi_bias": self.pi_bias}
        if self.values is not None:
            tensors["values"] = self.values
        thresholds = {str(person): to_mapping(at) for person, at in self.thresholds.items()}
        facts = {"form": self.form, "thresholds": thresholds, "released_threshold": self.released_threshold}
        return pack_tensors(tensors, {"facts": json.dumps(facts)})

    @classmethod
    def from_bytes(cls, model_id: str, data: bytes) -> StoredPersonal:
        """Return the input of `to_bytes`; raises CorruptDataError for anything else."""
        from mien.methods.personal_branch import PersonalThreshold

        tensors, facts = (
            unpack_tensors(data, what=_WHAT),
            parse_json(unpack_metadata(data)["facts"].encode(), what=_WHAT),
        )
        try:
            thresholds = {
                int(person): from_mapping(PersonalThreshold, stored) for person, stored in facts["thresholds"].items()
            }
            return cls(
                model_id,
                facts["form"],
                tensors["pi_weight"],
                tensors["pi_bias"],
                tensors.get("values"),
                thresholds,
                float(facts["released_threshold"]),
            )
        except (KeyError, ValueError) as error:
            raise CorruptDataError(f"{_WHAT} is of another format; call `Device.personalise()` again") from error
