"""Racial Faces in-the-Wild and SLLFW: pair lists in LFW's manner, and RFW's rank-1 search within a group.

RFW (Wang et al. 2019): for each of its groups `txts/<Group>/<Group>_pairs.txt`, 6,000 pairs in ten folds of 300 mated
and 300 non-mated ones, tab separated, `id i j` and `id i id j`, usually without a header; images are
`data/<Group>/<id>/<id>_0001.jpg`, ids Freebase's `m.xxxx`. `<Group>_people.txt` is read as `id number-of-images`, as
LFW's list of people is; that form could not be confirmed in a published file. RFW has no list of queries and galleries:
FedFR-UDA's is in a supplement that is not public, so `query_and_gallery` states a rule of ours.

SLLFW (Deng et al. 2017): `pair_SLLFW.txt`, two lines a pair, each `Name/Name_0001.jpg` of LFW, ten folds of 300 mated
and 300 look-alike pairs, no header.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from mien.errors import ConfigError, CorruptDataError
from mien.evaluation.fairness import GroupAccuracy
from mien.evaluation.identification import SearchResult, search
from mien.evaluation.protocols.lfw import LfwPair, LfwResult, LfwSample, PairList
from mien.evaluation.protocols.lists import bad_line, numbered_lines, whole

PROTOCOL: Final = "rfw-pairs-10fold"
SLLFW_PROTOCOL: Final = "sllfw-pairs-10fold"
VERSION: Final = "1"
NUM_FOLDS: Final = 10
GROUPS: Final = ("African", "Asian", "Caucasian", "Indian")

_NAME: Final = re.compile(r"[^\s/\\.][^\s/\\]*")
_FILE: Final = re.compile(r"([^\s/\\.][^\s/\\]*)/([^\s/\\]+)_([0-9]{1,6})\.(?:jpg|png)")


def parse_rfw_pairs(text: str, name: str = "pairs.txt") -> PairList:
    """Return a group's pairs in file order, for `lfw.evaluate`; a first line of two numbers is a header.

    Raises CorruptDataError naming file and line; also for a number of pairs that ten folds do not divide.
    """
    pairs = list[LfwPair]()
    for number, line in numbered_lines(text, name):
        fields = line.split()
        if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
            continue
        if len(fields) not in (3, 4):
            raise bad_line(name, number, f"it has {len(fields)} fields, not 'id i j' or 'id i id j'")
        first, i, second, j = (fields[0], fields[1], fields[0], fields[2]) if len(fields) == 3 else fields
        pairs.append(_pair(_sample(first, i, name, number), _sample(second, j, name, number), name, number))
        if len(fields) == 4 and pairs[-1].mated:
            raise bad_line(name, number, "it names one person twice where two should differ")
    return _in_folds(pairs, text, name)


def parse_sllfw(text: str, name: str = "pair_SLLFW.txt") -> PairList:
    """Return SLLFW's pairs in file order, for `lfw.evaluate`; a pair is mated iff both files lie in one folder.

    Raises CorruptDataError naming file and line; also for an odd number of lines.
    """
    samples = list[tuple[int, LfwSample]]()
    for number, line in numbered_lines(text, name):
        found = _FILE.fullmatch(line)
        if found is None or found[1] != found[2]:
            raise bad_line(name, number, "it should be a file of LFW such as Name/Name_0001.jpg")
        samples.append((number, _sample(found[1], found[3].lstrip("0") or "0", name, number)))
    if len(samples) % 2:
        raise CorruptDataError(f"{name} has {len(samples)} lines, which is odd; two make a pair: fetch the list again")
    pairs = [_pair(a, b, name, number) for (_, a), (number, b) in zip(samples[::2], samples[1::2], strict=True)]
    return _in_folds(pairs, text, name)


def group_accuracy(results: Mapping[str, LfwResult]) -> GroupAccuracy:
    """Return the groups' accuracies beside each other, at algorithm level.

    All comparisons are within a group; report `rates_by_group` at one threshold with it. Two subjects of RFW are known
    to be filed under two groups, and it overlaps MS-Celeb-1M: a model that was trained on that is not tested by it.
    """
    return GroupAccuracy({group: result.algorithm for group, result in results.items()})


@dataclass(frozen=True)
class QueryGallery:
    """Samples of the gallery, and the queries that are searched for in it, each once."""

    queries: tuple[LfwSample, ...]
    gallery: tuple[LfwSample, ...]

    def rank_1(self, queries: ArrayLike, gallery: ArrayLike) -> SearchResult:
        """Return the search of the queries' embeddings (Q, D) in the gallery's (G, D), rows as here; see `cmc`."""
        return search(
            np.asarray(queries),
            [sample.name for sample in self.queries],
            np.asarray(gallery),
            [sample.name for sample in self.gallery],
        )


def parse_people(text: str, name: str = "people.txt") -> dict[str, int]:
    """Return each person's number of images; a first line of one number is a header, as in LFW's lists.

    Raises CorruptDataError naming file and line; also for a person named twice or without images.
    """
    people = dict[str, int]()
    for number, line in numbered_lines(text, name):
        fields = line.split()
        if number == 1 and len(fields) == 1 and fields[0].isdigit():
            continue
        if len(fields) != 2 or not _NAME.fullmatch(fields[0]):
            raise bad_line(name, number, "it should be a person and a number of images")
        if fields[0] in people:
            raise bad_line(name, number, "this person stands on an earlier line too")
        people[fields[0]] = whole(fields[1], name, number, "the number of images")
        if people[fields[0]] == 0:
            raise bad_line(name, number, "a person without images cannot be tested")
    return people


def query_and_gallery(people: Mapping[str, int]) -> QueryGallery:
    """Return a group's search: each person's last image is a query where there are others, all others the gallery.

    This rule is ours. People with a single image are in the gallery only, as distractors.
    """
    if not people:
        raise ConfigError("there is nobody to search for; read a list of people first")
    queries = [LfwSample(name, count) for name, count in people.items() if count > 1]
    gallery = [LfwSample(name, i) for name, count in people.items() for i in range(1, max(2, count))]
    return QueryGallery(tuple(queries), tuple(gallery))


def _in_folds(pairs: Sequence[LfwPair], text: str, name: str) -> PairList:
    if not pairs or len(pairs) % NUM_FOLDS:
        raise CorruptDataError(f"{name} has {len(pairs)} pairs, which ten folds do not divide; fetch the list again")
    return PairList(tuple(pairs), NUM_FOLDS, hashlib.sha256(text.encode()).hexdigest())


def _pair(first: LfwSample, second: LfwSample, name: str, number: int) -> LfwPair:
    if first == second:
        raise bad_line(name, number, "it compares a photograph with itself")
    return LfwPair(first, second)


def _sample(person: str, image: str, name: str, number: int) -> LfwSample:
    if not _NAME.fullmatch(person):
        raise bad_line(name, number, "a person's folder name has characters that no list has")
    if not re.fullmatch(r"[1-9][0-9]{0,5}", image):
        raise bad_line(name, number, "a photograph's number should be from 1 on")
    return LfwSample(person, int(image))
