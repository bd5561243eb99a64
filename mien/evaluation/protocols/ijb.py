"""IARPA Janus Benchmarks A, B and C: templates of several images, their comparisons, and searches of two galleries.

B and C come with insightface's metadata (space separated, no header): `ijbc_face_tid_mid.txt` (image, template id,
media id), `ijbc_template_pair_label.txt` (template, template, 0 or 1), `ijbc_name_5pts_score.txt` (image, five points,
detector score), and NIST's galleries and probes as CSV with a header (`TEMPLATE_ID,SUBJECT_ID,FILENAME,...`, one line
an image). A comes as NIST's ten splits: `verify_metadata_<n>.csv` (`TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID,...`),
`verify_comparisons_<n>.csv` (two template ids a line, no header), `search_gallery_<n>.csv`, `search_probe_<n>.csv`.
Columns are found by name, so those that vary between releases do not matter. Pooling is
`mien.evaluation.pool_templates`. Legend: N images, P pairs, T templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, CorruptDataError, UndefinedMetricError
from mien.evaluation.identification import OpenSetPoint, SearchResult, mean_tpir, open_set_at_fpir, search
from mien.evaluation.protocols.lists import bad_line, columns, header_of, numbered_lines, relative_path, whole
from mien.evaluation.scores import Comparisons
from mien.evaluation.templates import Templates

PROTOCOL: Final = "ijb-templates"
VERSION: Final = "1"
_BLOCK: Final = 65536


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Template (N,) and medium (N,) of each image (N,): the input of `pool_templates`."""

    images: tuple[str, ...] = field(repr=False)
    template_ids: NDArray[np.int64] = field(repr=False)
    media_ids: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Five points (N, 5, 2) of each image in file order, (x, y) in pixels, and the detector's score (N,)."""

    images: tuple[str, ...] = field(repr=False)
    points: NDArray[np.float64] = field(repr=False)
    detector_scores: NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True, eq=False)
class TemplatePairs:
    """Comparisons of templates by id, (P,) each, and whether each is mated."""

    first: NDArray[np.int64] = field(repr=False)
    second: NDArray[np.int64] = field(repr=False)
    mated: NDArray[np.bool_] = field(repr=False)

    def score(self, templates: Templates) -> Comparisons:
        """Return the cosines of these pairs; raises ConfigError where a template that a pair needs is missing."""
        rows_1, rows_2 = (_rows(templates, ids) for ids in (self.first, self.second))
        scores = np.empty(len(self.mated))
        for start in range(0, len(scores), _BLOCK):
            block = slice(start, start + _BLOCK)
            scores[block] = np.einsum("pd,pd->p", templates.vectors[rows_1[block]], templates.vectors[rows_2[block]])
        scores = np.clip(scores, -1.0, 1.0)
        return Comparisons(scores[self.mated], scores[~self.mated])


@dataclass(frozen=True, eq=False)
class Subjects:
    """Templates of a gallery or of the probes, each once in order of first mention, and whom each shows, (T,)."""

    template_ids: NDArray[np.int64]
    subject_ids: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class TwoGalleries:
    """Open-set figures of each gallery apart and their mean, and how many probes of both have a mate at rank 1."""

    results: tuple[SearchResult, ...] = field(repr=False)

    def tpir(self, target_fpir: float) -> tuple[float, tuple[OpenSetPoint, ...]]:
        """Return the mean TPIR at a FPIR, each gallery with its own threshold, and the galleries' points."""
        points = tuple(open_set_at_fpir(result, target_fpir) for result in self.results)
        return mean_tpir(points), points

    def rank_rate(self, rank: int) -> float:
        """Return the closed-set hit rate over the mated probes of all galleries together.

        Raises UndefinedMetricError without mated probes.
        """
        num_mated = sum(result.num_mated for result in self.results)
        if num_mated == 0:
            raise UndefinedMetricError("no probe has a mate in a gallery; closed-set rates need some")
        return sum(int((result.mate_rank <= rank).sum()) for result in self.results) / num_mated


def parse_face_media(text: str, name: str = "ijbc_face_tid_mid.txt") -> ImageTable:
    """Return image, template and medium of each line; raises CorruptDataError naming file and line."""
    images, numbers = list[str](), list[tuple[int, int]]()
    for number, line in numbered_lines(text, name):
        fields = line.split()
        if len(fields) != 3:
            raise bad_line(name, number, f"it has {len(fields)} fields, not image, template and medium")
        images.append(relative_path(fields[0], name, number))
        numbers.append(
            (whole(fields[1], name, number, "the template id"), whole(fields[2], name, number, "the media id"))
        )
    table = np.array(numbers, np.int64)
    return ImageTable(tuple(images), table[:, 0], table[:, 1])


def parse_template_pairs(text: str, name: str = "ijbc_template_pair_label.txt") -> TemplatePairs:
    """Return the comparisons `template template label`; raises CorruptDataError naming file and line."""
    rows = list[tuple[int, int, int]]()
    for number, line in numbered_lines(text, name):
        fields = line.split()
        if len(fields) != 3 or fields[2] not in ("0", "1"):
            raise bad_line(name, number, "it should be two template ids and a label of 0 or 1")
        rows.append((*(whole(text, name, number, "a template id") for text in fields[:2]), int(fields[2])))  # type: ignore[arg-type]
    table = np.array(rows, np.int64)
    return TemplatePairs(table[:, 0], table[:, 1], table[:, 2] == 1)


def parse_landmarks(text: str, name: str = "ijbc_name_5pts_score.txt") -> Landmarks:
    """Return points and detector scores of each line `image x1 y1 ... x5 y5 score`.

    Raises CorruptDataError naming file and line, also for NaN, infinity or a negative score.
    """
    images, rows = list[str](), list[list[float]]()
    for number, line in numbered_lines(text, name):
        image, *values = line.split()
        if len(values) != 11:
            raise bad_line(name, number, f"it has {len(values)} numbers, not ten coordinates and a score")
        images.append(relative_path(image, name, number))
        rows.append(_finite(values, name, number))
    table = np.array(rows)
    return Landmarks(tuple(images), table[:, :10].reshape(-1, 5, 2), table[:, 10])


def parse_subjects(text: str, name: str) -> Subjects:
    """Return the templates of a 1:N gallery or probe CSV, which names each image of a template on a line of its own.

    Raises CorruptDataError naming file and line, also where one template shows two subjects.
    """
    header = header_of(text, ("TEMPLATE_ID", "SUBJECT_ID"), name)
    owner = dict[int, int]()
    for number, line in numbered_lines(text, name, skip=1):
        fields = columns(line, header, ("TEMPLATE_ID", "SUBJECT_ID"), name, number)
        template, subject = (whole(each, name, number, "an id") for each in fields)
        if owner.setdefault(template, subject) != subject:
            raise bad_line(name, number, f"template {template} shows another subject than on an earlier line")
    return Subjects(np.array(list(owner), np.int64), np.array(list(owner.values()), np.int64))


def parse_ijba_metadata(text: str, name: str) -> tuple[ImageTable, Subjects]:
    """Return the images and the subjects of one split of IJB-A; an image's path is its `FILE`.

    Raises CorruptDataError naming file and line.
    """
    wanted = ("TEMPLATE_ID", "FILE", "MEDIA_ID")
    header = header_of(text, (*wanted, "SUBJECT_ID"), name)
    images, numbers = list[str](), list[tuple[int, int]]()
    for number, line in numbered_lines(text, name, skip=1):
        template, image, medium = columns(line, header, wanted, name, number)
        images.append(relative_path(image, name, number))
        numbers.append((whole(template, name, number, "the template id"), whole(medium, name, number, "the media id")))
    table = np.array(numbers, np.int64)
    return ImageTable(tuple(images), table[:, 0], table[:, 1]), parse_subjects(text, name)


def parse_ijba_comparisons(text: str, subjects: Subjects, name: str) -> TemplatePairs:
    """Return the comparisons of one split of IJB-A, mated where both templates show one subject.

    Raises CorruptDataError naming file and line, also for a template that the metadata do not name.
    """
    owner = dict(zip(subjects.template_ids.tolist(), subjects.subject_ids.tolist(), strict=True))
    rows = list[tuple[int, int]]()
    for number, line in numbered_lines(text, name):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 2:
            raise bad_line(name, number, f"it has {len(fields)} fields, not two template ids")
        first, second = (whole(each, name, number, "a template id") for each in fields)
        if first not in owner or second not in owner:
            raise bad_line(name, number, "it names a template that the metadata lack")
        rows.append((first, second))
    mated = np.array([owner[a] == owner[b] for a, b in rows])
    table = np.array(rows, np.int64)
    return TemplatePairs(table[:, 0], table[:, 1], mated)


def search_galleries(
    templates: Templates, galleries: tuple[Subjects, ...], probes: Subjects, *, failed: Sequence[int] = ()
) -> TwoGalleries:
    """Return the probes' results for each gallery apart: a probe whose mate is in another one is non-mated here.

    `failed` names the templates that no image gave: such a probe is missed and never alarms, and a probe is missed
    where its subject has no other template in the gallery. Raises ConfigError for another missing template,
    CorruptDataError where galleries share a subject.
    """
    seen = np.concatenate([np.unique(gallery.subject_ids) for gallery in galleries])
    if len(np.unique(seen)) != len(seen):
        raise CorruptDataError("the galleries share a subject; in IJB-B and IJB-C they are disjoint: fetch them again")
    lost = np.isin(probes.template_ids, np.array(failed, np.int64))
    return TwoGalleries(tuple(_search(templates, gallery, probes, lost, failed) for gallery in galleries))


def _search(
    templates: Templates, gallery: Subjects, probes: Subjects, lost: NDArray[np.bool_], failed: Sequence[int]
) -> SearchResult:
    kept = ~np.isin(gallery.template_ids, np.array(failed, np.int64))
    is_mated = np.isin(probes.subject_ids, gallery.subject_ids)
    lost = lost | (is_mated & ~np.isin(probes.subject_ids, gallery.subject_ids[kept]))
    result = search(
        templates.vectors[_rows(templates, probes.template_ids[~lost])],
        probes.subject_ids[~lost],
        templates.vectors[_rows(templates, gallery.template_ids[kept])],
        gallery.subject_ids[kept],
    )
    return replace(
        result, num_failed_mated=int((lost & is_mated).sum()), num_failed_non_mated=int((lost & ~is_mated).sum())
    )


def _rows(templates: Templates, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    place = np.minimum(np.searchsorted(templates.ids, ids), max(0, len(templates.ids) - 1))
    missing = ids[templates.ids[place] != ids] if len(templates.ids) else ids
    if len(missing):
        raise ConfigError(
            f"{len(np.unique(missing))} templates were not pooled, first {int(missing[0])}; pool all of them"
        )
    return place.astype(np.int64)


def _finite(values: list[str], name: str, number: int) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except ValueError as error:
        raise bad_line(name, number, "a coordinate or score is not a number") from error
    if not np.isfinite(numbers).all() or numbers[-1] < 0:
        raise bad_line(name, number, "a coordinate or score is infinite, NaN or negative where it must not be")
    return numbers
