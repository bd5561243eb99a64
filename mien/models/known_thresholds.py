"""Thresholds of known models that were measured on real people, with the scores that they were read off.

One file a model in `thresholds/`, as `scripts/write_known_thresholds.py` writes it: counts and cosines, no picture and
no embedding. A threshold belongs to a model by the hash of its parameters: what was trained further has none here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

from mien.errors import CorruptDataError
from mien.records import from_mapping
from mien.specs import Threshold


@dataclass(frozen=True)
class KnownScores:
    """Scores of a known model on a public data set, and the thresholds that follow.

    `mated` and `non_mated` count the cosines of every two pictures in equal bins of [-1, 1]; `strangers` those of
    people enrolled as on a phone, with three to five pictures, against other people's single pictures. The thresholds
    are of the exact scores. `images` counts the pictures, `fte` those among them in which no face was found.
    """

    title: str
    model_id: str
    dataset: str
    dataset_sha256: str
    dataset_terms: str
    identities: int
    images: int
    fte: int
    mated: tuple[int, ...]
    non_mated: tuple[int, ...]
    strangers: tuple[int, ...]
    thresholds: tuple[Threshold, ...]
    commit: str
    command: str

    def __post_init__(self) -> None:
        if any(known.model_id != self.model_id for known in self.thresholds):
            raise CorruptDataError(f"the thresholds of {self.title} name another model; install mien again")


@cache
def known_scores() -> Mapping[str, KnownScores]:
    """Return what was measured, by the model's id."""
    folder = resources.files(__package__).joinpath("thresholds")
    found = [json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir() if file.name.endswith(".json")]
    return MappingProxyType({scores.model_id: scores for scores in (from_mapping(KnownScores, each) for each in found)})


def known_thresholds(model_id: str) -> tuple[Threshold, ...]:
    """Return the thresholds that come with a model; none for one that is not known."""
    scores = known_scores().get(model_id)
    return () if scores is None else scores.thresholds
