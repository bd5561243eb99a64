"""MegaFace's first challenge as a protocol of distractors: probes of FaceScrub, found among a million strangers.

The set was withdrawn by its makers in 2020; the lists are read so that old figures can be compared with. Lists are the
devkit's JSON: `facescrub_features_list.json` `{"path": [...], "id": [...]}` and `megaface_features_list.json_<n>_1`
`{"path": [...]}`. Noise lists (`facescrub_noises.txt`, `megaface_noises.txt`) have one path or file name a line, `#`
starts a comment, and a second tab-separated field, where there is one, is the path.

A figure is either raw or refined ("@R"), and `Challenge.variant` says which. Refined here means that noisy probes and
distractors are left out. insightface's tools replace a noisy probe by its person's mean with a little noise and push
noisy distractors out of reach, which ranks the same otherwise. Choosing the lowest-scoring face of a distractor's
photograph is not done here. Legend: Q probes, N distractors, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation.protocols.lists import bad_line, json_object, numbered_lines, relative_path
from mien.evaluation.scores import DEFAULT_BINS, Comparisons, ScoreHistogram, normalise, rows_of_each

PROTOCOL: Final = "megaface-challenge-1"
VERSION: Final = "1"
_BLOCK: Final = 4096


@dataclass(frozen=True, eq=False)
class Challenge:
    """Probe images with their people, and distractor images; `variant` says whether noise lists were applied."""

    probes: tuple[str, ...] = field(repr=False)
    people: tuple[str, ...] = field(repr=False)
    distractors: tuple[str, ...] = field(repr=False)
    variant: Literal["raw", "refined"] = "raw"

    def refined(self, noisy_probes: Sequence[str], noisy_distractors: Sequence[str]) -> Challenge:
        """Return the challenge without the images that the noise lists name, by path or by file name.

        FaceScrub's names are compared without spaces and underscores, which its releases set differently.
        """
        bad_probes, bad_distractors = {_plain(each) for each in noisy_probes}, set(noisy_distractors)
        kept = [
            (path, person)
            for path, person in zip(self.probes, self.people, strict=True)
            if not {_plain(path), _plain(path.rsplit("/", 1)[-1])} & bad_probes
        ]
        return Challenge(
            tuple(path for path, _ in kept),
            tuple(person for _, person in kept),
            tuple(path for path in self.distractors if path not in bad_distractors),
            "refined",
        )

    def evaluate(self, probes: ArrayLike, distractors: ArrayLike) -> ChallengeResult:
        """Return rank 1 among all distractors, and the scores of probes against them, in blocks of 4096 distractors.

        For each ordered pair of images of one person the second joins the distractors, and must score higher than all
        of them; a tie is a miss. `probes` (Q, D) and `distractors` (N, D) are in the order of the lists.
        Raises ConfigError for another number of rows, UndefinedMetricError without a pair or without a distractor.
        """
        probe_QD, other_ND = normalise(probes), np.asarray(distractors)
        if len(probe_QD) != len(self.probes) or other_ND.ndim != 2 or len(other_ND) != len(self.distractors):
            raise ConfigError(
                f"the lists name {len(self.probes)} probes and {len(self.distractors)} distractors, embeddings are "
                f"{len(probe_QD)} and {len(other_ND)}; give one for each, in order"
            )
        if len(other_ND) == 0:
            raise UndefinedMetricError("there are no distractors; read a list of some")
        top_Q = np.full(len(probe_QD), -np.inf)
        histogram = ScoreHistogram.empty(DEFAULT_BINS)
        for start in range(0, len(other_ND), _BLOCK):
            scores = np.clip(probe_QD @ normalise(other_ND[start : start + _BLOCK]).T, -1.0, 1.0)
            top_Q = np.maximum(top_Q, scores.max(axis=1))
            histogram += ScoreHistogram.of(Comparisons(np.zeros(0), scores.reshape(-1)))
        mates, searchers = self._mates(probe_QD)
        histogram += ScoreHistogram.of(Comparisons(mates, np.zeros(0)))
        return ChallengeResult(self.variant, int((mates > top_Q[searchers]).sum()), len(mates), histogram)

    def _mates(self, probe_QD: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the score of every ordered pair of images of one person, and which probe searches."""
        scores, searchers = list[NDArray[np.float64]](), list[NDArray[np.int64]]()
        for rows in rows_of_each(self.people):
            own = np.clip(probe_QD[rows] @ probe_QD[rows].T, -1.0, 1.0)
            different = ~np.eye(len(rows), dtype=np.bool_)
            scores.append(own[different])
            searchers.append(np.repeat(rows, len(rows) - 1))
        if not sum(map(len, scores)):
            raise UndefinedMetricError("no person has two probes, so nobody has a mate to be found; add images")
        return np.concatenate(scores), np.concatenate(searchers)


@dataclass(frozen=True)
class ChallengeResult:
    """Hits at rank 1 of all ordered pairs, and the histogram for TAR at FMR: mated pairs against probe x distractor.

    `det_curve` of the histogram gives operating points; mated pairs count in both directions.
    """

    variant: Literal["raw", "refined"]
    num_hits: int
    num_pairs: int
    histogram: ScoreHistogram = field(repr=False)

    @property
    def rank_1(self) -> float:
        """Share of ordered pairs whose mate beats every distractor."""
        return self.num_hits / self.num_pairs


def parse_challenge(
    probes: str,
    distractors: str,
    probes_name: str = "facescrub_features_list.json",
    distractors_name: str = "megaface_features_list.json",
) -> Challenge:
    """Return the challenge of two JSON lists; raises CorruptDataError naming file and line (of the JSON), or entry."""
    probe_list = json_object(probes, probes_name)
    paths, people = (_strings(probe_list, key, probes_name) for key in ("path", "id"))
    if len(paths) != len(people):
        raise bad_line(probes_name, 1, f"it has {len(paths)} paths and {len(people)} ids")
    others = _strings(json_object(distractors, distractors_name), "path", distractors_name)
    for entries, name in ((paths, probes_name), (others, distractors_name)):
        if len(set(entries)) != len(entries):
            raise bad_line(name, 1, "it names an image twice")
    return Challenge(paths, people, others)


def parse_noise(text: str, name: str) -> tuple[str, ...]:
    """Return the entries of a noise list; raises CorruptDataError for one without any."""
    entries = [line.split("\t")[-1].strip() for _, line in numbered_lines(text, name) if not line.startswith("#")]
    if not entries:
        raise bad_line(name, 1, "it has comments only")
    return tuple(entries)


def _strings(value: dict[str, object], key: str, name: str) -> tuple[str, ...]:
    """Return the list of strings under a key; paths are checked to be relative."""
    entries = value.get(key)
    if not isinstance(entries, list):
        raise bad_line(name, 1, f"it has no list named {key!r}")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, str) or not entry:
            raise bad_line(name, 1, f"entry {number} of {key!r} is no text")
        if key == "path":
            relative_path(entry, f"{name}, entry {number} of {key!r}", 1)
    return tuple(entries)


def _plain(name: str) -> str:
    return name.replace(" ", "").replace("_", "")
