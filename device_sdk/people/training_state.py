"""Training state on a phone, by owner: each person's own rows, and what is of all of them together.

A method numbers identities from 0 and keeps arrays with one row for each (`Method.per_identity`). A phone keeps rows by
person, so that one can leave and the others' vectors stay; what was trained on everybody's pictures goes with anybody
who leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mien.contribution import Arrays
from mien.errors import LayoutMismatchError


@dataclass(frozen=True)
class Kept:
    """Private state: `own` rows by person, and what is of `members` together, in the order of their numbers."""

    own: Mapping[int, Arrays] = field(default_factory=dict, repr=False)
    together: Arrays = field(default_factory=dict, repr=False)
    members: tuple[int, ...] = ()


def by_person(private: Arrays, people: Sequence[int], per_identity: Sequence[str]) -> Kept:
    """Return a method's private state by whose it is; identity number k is `people[k]`.

    Where a method keeps no rows, one person's state is all theirs. Raises LayoutMismatchError for an array that has not
    a row for each person.
    """
    if not per_identity:
        return Kept({people[0]: private}) if len(people) == 1 else Kept({}, private, tuple(people))
    own: dict[int, dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]] = {person: {} for person in people}
    for name in [name for name in per_identity if name in private]:
        # One identity's row may have come as a vector.
        rows = private[name] if len(people) > 1 or private[name].ndim > 1 else private[name][None]
        if len(rows) != len(people):
            raise LayoutMismatchError(f"{name} has {len(rows)} rows for {len(people)} people; upgrade mien")
        for person, row in zip(people, rows, strict=True):
            own[person][name] = np.ascontiguousarray(row)
    return Kept(own, {name: values for name, values in private.items() if name not in per_identity}, tuple(people))


@dataclass(frozen=True)
class Numbered:
    """A round's people in the order of their numbers, and the private state that fits it.

    `is_continued` tells whether everybody of the last counted round has the number of then: what the server holds by
    number fits only so.
    """

    people: tuple[int, ...]
    private: Arrays = field(repr=False)
    is_continued: bool


def for_round(kept: Kept, people: Sequence[int], per_identity: Sequence[str]) -> Numbered:
    """Return a round's numbering of people: whoever has rows keeps their place before whoever is new.

    What is of several together counts only while all of them take part.
    """
    stay = [person for person in kept.members if person in people]
    known = [person for person in people if person in kept.own and person not in stay]
    order = tuple(dict.fromkeys([*stay, *sorted(known), *sorted(people)]))
    is_continued = order[: len(kept.members)] == kept.members and (bool(kept.members) or not known)
    together = kept.together if is_continued else {}
    if not per_identity:
        return Numbered(order, kept.own.get(order[0], {}) if len(order) == 1 else together, is_continued)
    with_rows = [kept.own[person] for person in order if person in kept.own]
    private = dict(together)
    for name in per_identity:
        rows = [own[name] for own in with_rows if name in own]
        if rows and len(rows) == len(with_rows) and len({row.shape for row in rows}) == 1:
            private[name] = np.stack(rows)
    return Numbered(order, private, is_continued)
