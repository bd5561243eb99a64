"""Release history: which model is released to all or a share of the phones, and the way back.

A history is the releases that concern one population (its own, and those for all), oldest first. Nothing here changes
one: releasing and rolling back append.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mien.errors import ConfigError
from mien.protocol.ids import DeviceId, ModelId, PopulationId
from mien.rounds.records import CandidateRecord, CandidateState, ModelRecord, ReleaseRecord

History = Sequence[ReleaseRecord]

UNJUDGED: Final = "no evaluation set has judged it"
"""Verdict on a candidate of a coordinator without gates."""


class ModelState(StrEnum):
    """State of a model: `ROUND` is a round's by-product, never offered for release."""

    ROUND = "round"
    CANDIDATE = "candidate"
    RELEASED = "released"
    REJECTED = "rejected"
    RETIRED = "retired"


@dataclass(frozen=True)
class Standing:
    """A model's state, the share of its population's phones that it is for, and what there is to say about it."""

    state: ModelState
    share: float = 0.0
    reason: str = ""


def place(device_id: DeviceId, model_id: ModelId) -> float:
    """Return a device's place in [0, 1) in the roll-out of a model: it is among the first 10 % if that is below 0.1.

    Fixed by the two ids, so that a share that grows keeps those who have the model, and other models' first are others.
    """
    digest = hashlib.sha256(f"mien/roll-out/1\n{model_id}\n{device_id}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def check_comparable(model: ModelRecord, other: ModelRecord) -> None:
    """Raise ConfigError for a second model that devices cannot run beside the first one."""
    if other.removed_ms is not None:
        raise ConfigError(f"the parameters of model {other.model_id[:12]} were given up; compare with another one")
    if other.layout_sha256 != model.layout_sha256:
        raise ConfigError(
            f"models {model.model_id[:12]} and {other.model_id[:12]} are of different architectures; phones compare "
            "versions of one model"
        )


def in_force(history: History, device_id: DeviceId | None = None) -> ReleaseRecord | None:
    """Return the release that is a device's, or without one that of all who are in no partial roll-out.

    Only the newest release can be partial and in force: a later one of any kind ends it.
    """
    if not history:
        return None
    newest = history[-1]
    is_for = newest.share >= 1 or (device_id is not None and place(device_id, newest.model_id) < newest.share)
    return newest if is_for else next((release for release in reversed(history) if release.share >= 1), None)


def in_force_everywhere(releases: History) -> list[tuple[PopulationId | None, ReleaseRecord, float]]:
    """Return each population (None: those without releases of their own) with the releases that its phones have.

    `releases` are all there are. Beside each stands the share of the phones; the newest comes before what the others
    have.
    """
    found: list[tuple[PopulationId | None, ReleaseRecord, float]] = []
    for population in sorted({release.population for release in releases}, key=lambda name: name or ""):
        history = history_of(releases, population)
        newest, base = history[-1], in_force(history)
        found.append((population, newest, newest.share))
        if base is not None and base is not newest:
            found.append((population, base, 1.0 - newest.share))
    return found


def before(history: History) -> ModelId | None:
    """Return the model that a roll-back puts in force; None where there is none to go back to.

    That is the one that all others still have while a roll-out is partial, else the one before. Rolling back again goes
    one further: a model that was rolled back from does not come back.
    """
    stack: list[ModelId] = []
    for release in history:
        if release.share < 1:
            continue
        if release.is_rollback and release.model_id in stack:
            del stack[len(stack) - stack[::-1].index(release.model_id) :]
        elif not stack or stack[-1] != release.model_id:
            stack.append(release.model_id)
    if history and history[-1].share < 1:
        return stack[-1] if stack else None
    return stack[-2] if len(stack) > 1 else None


def history_of(releases: Iterable[ReleaseRecord], population: PopulationId | None) -> History:
    """Return the releases that concern a population (None: those for all)."""
    return [release for release in releases if release.population in (None, population)]


def rolled_back(releases: History, population: PopulationId | None) -> list[tuple[ModelId, ReleaseRecord]]:
    """Return the releases that take back a population's newest one, each with the newest one's model before it.

    `releases` are all there are. Where the newest one is for all, every population goes back to what it had itself,
    and one that was released something of its own since keeps it. Empty where there is nothing to go back to.
    """
    mine = history_of(releases, population)
    earlier = before(mine)
    if earlier is None:
        return []
    everyones = None if mine[-1].population is not None else before(history_of(releases, None))
    if everyones is None:  # it is the population's own, or the others had none before
        return [(mine[-1].model_id, ReleaseRecord(earlier, population, 0, "", is_rollback=True))]
    found = [(mine[-1].model_id, ReleaseRecord(everyones, None, 0, "", is_rollback=True))]
    for each in sorted({release.population for release in releases if release.population is not None}):
        theirs = history_of(releases, each)
        back = before(theirs) if theirs[-1].population is None else None
        kept = replace(theirs[-1], population=each)
        release = kept if back is None else ReleaseRecord(back, each, 0, "", is_rollback=True)
        if (release.model_id, release.share) != (everyones, 1.0):
            found.append((theirs[-1].model_id, release))
    return found


def standings(
    models: Iterable[ModelRecord], releases: History, candidates: Iterable[CandidateRecord]
) -> dict[ModelId, Standing]:
    """Return each model's standing, by id, given all releases and all candidates, oldest first."""
    shares = _shares(releases)
    offered = {candidate.model_id: candidate for candidate in candidates}
    once = {release.model_id for release in releases}
    return {model.model_id: _standing(model, shares, once, offered.get(model.model_id)) for model in models}


def _shares(releases: History) -> dict[ModelId, float]:
    """Return the models in force for any population, and for which share of it; the largest of several."""
    shares: dict[ModelId, float] = {}
    for _, release, share in in_force_everywhere(releases):
        shares[release.model_id] = max(shares.get(release.model_id, 0.0), share)
    return shares


def _standing(
    model: ModelRecord, shares: dict[ModelId, float], once: Collection[ModelId], candidate: CandidateRecord | None
) -> Standing:
    reason = "" if candidate is None else candidate.reason
    if model.model_id in shares:
        return Standing(ModelState.RELEASED, shares[model.model_id], reason)
    if model.model_id in once:
        return Standing(ModelState.RETIRED, reason=reason)
    if candidate is not None and candidate.state is CandidateState.FAILED:
        return Standing(ModelState.REJECTED, reason=reason)
    if candidate is not None or model.task_id is None:
        words = {
            CandidateState.WAITING: "its gates have not decided yet",
            CandidateState.PASSED: "passed its gates",
            CandidateState.UNCHECKED: UNJUDGED,
        }
        return Standing(ModelState.CANDIDATE, reason=reason or (words.get(candidate.state, "") if candidate else ""))
    return Standing(ModelState.ROUND)
