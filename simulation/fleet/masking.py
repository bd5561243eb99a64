"""Stages of secure aggregation for a cohort that sends no messages: who can go on, and whether it opens.

Decided by the protocol's own rules (`mien.secagg.quorum`), on graphs drawn as the protocol draws them. Messages are
taken to be right: phones that cheat are another matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from mien.errors import CohortError
from mien.protocol.ids import DeviceId
from mien.protocol.rounds import Stage
from mien.rounds.machine import PATHS
from mien.secagg.graph import Graph, Neighbourhood, default_neighbourhood
from mien.secagg.groups import MIN_ROBUST_GROUPS, deal
from mien.secagg.planner import PROFILES, smallest_sum
from mien.secagg.quorum import able_to_share, first_lack, proof_of, secrets_needed
from mien.specs import TaskSpec


@dataclass
class _Group:
    """One sum: its devices, and their places on the roster once that is closed."""

    members: frozenset[DeviceId]
    done: dict[Stage, set[DeviceId]] = field(default_factory=dict)
    places: dict[DeviceId, int] = field(default_factory=dict)
    graph: Graph = field(default_factory=lambda: Graph(0, 0, b""))
    hood: Neighbourhood = field(default_factory=lambda: Neighbourhood(0, 0))
    proved: frozenset[DeviceId] = frozenset()

    def at(self, stage: Stage) -> set[int]:
        """Return the places of those who did their part of a stage."""
        return {self.places[device] for device in self.done.get(stage, ()) if device in self.places}


class EmulatedSums:
    """The sums of one attempt, stage by stage, as `coordinator.rounds.masked.MaskedRound` leads them."""

    def __init__(self, task: TaskSpec, devices: Collection[DeviceId], seed: int) -> None:
        """`seed` deals devices into groups and draws graphs."""
        self.stage = Stage.KEYS
        self._task, self._seed = task, seed
        self._profile = PROFILES[task.privacy.secure_aggregation]
        self._path = PATHS[task.privacy.secure_aggregation][1:]
        self._groups = [_Group(members) for members in deal(devices, task.privacy.groups, seed)]

    def accept(self, device: DeviceId, stage: Stage) -> None:
        """Take a device's part of the open stage."""
        for group in self._groups:
            if device in group.members:
                group.done.setdefault(stage, set()).add(device)

    def is_asked(self, device: str, stage: Stage) -> bool:
        """Return whether a device is told anything at a stage; not without enough signatures beside its own."""
        if stage is not Stage.UNMASK or Stage.CONSISTENCY not in self._path:
            return True
        return any(device in group.proved for group in self._groups)

    def close(self, stage: Stage) -> frozenset[DeviceId]:
        """End a stage and open the next; return the devices of groups that are too small to go on.

        Raises CohortError where too few groups can go on.
        """
        lost, failure = frozenset[DeviceId](), None
        for group in tuple(self._groups):
            try:
                self._close(group, stage)
            except CohortError as error:
                failure, lost = error, lost | group.members
                self._groups.remove(group)
        fewest = 1 if self._task.privacy.group_mean == "mean" else MIN_ROBUST_GROUPS
        if failure is not None and len(self._groups) < fewest:
            raise failure
        self.stage = self._path[self._path.index(stage) + 1]
        return lost

    @property
    def can_open(self) -> bool:
        """True if every group's sum can be opened now."""
        return self.stage is Stage.UNMASK and all(_is_covered(group) for group in self._groups)

    def _close(self, group: _Group, stage: Stage) -> None:
        match stage:
            case Stage.KEYS:
                self._close_roster(group)
            case Stage.SHARES:
                able = able_to_share(group.graph, group.hood, group.at(Stage.SHARES))
                self._require(len(able), "shared their keys with enough neighbours")
            case Stage.UPLOAD:
                masked = group.at(Stage.UPLOAD)
                self._require(len(masked), "sent their vectors")
                _require_holders(group, masked)
            case _:
                signed = group.at(Stage.CONSISTENCY)
                proofs = {place for place in signed if proof_of(group.graph, group.hood, place, signed) is not None}
                _require_holders(group, proofs)
                group.proved = frozenset(device for device, place in group.places.items() if place in proofs)

    def _close_roster(self, group: _Group) -> None:
        keyed = sorted(group.done.get(Stage.KEYS, ()))
        self._require(len(keyed), "sent keys")
        group.places = {device: place for place, device in enumerate(keyed)}
        group.hood = default_neighbourhood(self._profile, len(keyed))
        seed = hashlib.sha256(f"{self._seed}/{min(group.members)}".encode()).digest()
        group.graph = Graph(len(keyed), group.hood.k, seed)

    def _require(self, number: int, did: str) -> None:
        least = smallest_sum(self._task)
        if number < least:
            raise CohortError(f"{number} devices {did}, {least} are needed; nothing was opened, the round is repeated")


def _needed(group: _Group) -> Sequence[int]:
    return secrets_needed(group.graph, group.at(Stage.SHARES), group.at(Stage.UPLOAD))


def _is_covered(group: _Group) -> bool:
    released = group.at(Stage.UNMASK)
    # Most of the way there are too few of them for any secret, which costs nothing to see.
    return len(released) >= group.hood.t and first_lack(group.graph, group.hood, _needed(group), released) is None


def _require_holders(group: _Group, holders: set[int]) -> None:
    """Raise CohortError unless each secret that will be needed has t holders among `holders`."""
    lack = first_lack(group.graph, group.hood, _needed(group), holders)
    if lack is not None:
        raise CohortError(
            f"{lack.holders} devices are left that hold shares of one of them, {group.hood.t} are needed; nothing was "
            "opened, the round is repeated"
        )
