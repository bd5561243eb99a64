"""One attempt under secure aggregation, as a round's driver sees it: accept a step, end a stage, open the sums.

A cohort is one sum, or several groups with a sum each (`mien.secagg.groups`). All that happened follows from the
configuration and the accepted messages in order, so that a restart makes it again (`replay`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mien.contribution import Total
from mien.errors import CohortError, CorruptDataError, NotFoundError, ViolationError
from mien.protocol.ids import DeviceId
from mien.protocol.rounds import Stage
from mien.rounds.machine import PATHS
from mien.rounds.plan import TaskPlan
from mien.rounds.records import StepRecord
from mien.secagg import Elsewhere, RoundConfig, ServerRound, Suspect
from mien.secagg.groups import MIN_ROBUST_GROUPS, combine
from mien.secagg.keys import VerifyLeaf
from mien.secagg.masks import Words
from mien.secagg.noise import clip_after, noise_allowance, noised
from mien.secagg.server import ServerStage
from mien.secagg.vector import ContributionMap
from mien.shell.keys import secret_bytes

MAX_STEP_BYTES: Final = 512 * 1024
"""No message of a device is longer: 254 sealed shares take 305 KB."""


@dataclass(frozen=True)
class MaskedTotal:
    """The result of opening the sums: the total, and what the server may tell of it.

    `share_clipped` is None where differential privacy keeps it; `next_clip` is what an adaptive clip becomes.
    """

    total: Total = field(repr=False)
    share_clipped: float | None
    next_clip: float | None
    suspects: tuple[Suspect, ...]
    num_groups: int
    seconds: float


class _Group:
    """One sum: the protocol's server, and what its devices are to be told at the open stage."""

    def __init__(self, config: RoundConfig, members: frozenset[DeviceId], verify: VerifyLeaf, threads: int) -> None:
        self.members = members
        self.server = ServerRound(config, verify=verify, threads=threads)
        self.messages: Mapping[DeviceId, bytes] = dict.fromkeys(members, self.server.invite)

    @property
    def uploaded(self) -> frozenset[DeviceId]:
        """The devices whose vectors are in the sum."""
        return frozenset(DeviceId(device.hex()) for device in self.server.reported(ServerStage.UPLOAD))

    def accept(self, step: StepRecord, payload: bytes | Elsewhere) -> None:
        server = self.server
        takes = {
            Stage.KEYS: server.accept_advertise,
            Stage.SHARES: server.accept_shares,
            Stage.UPLOAD: lambda sender, message: server.accept_masked(sender, message, payload),
            Stage.CONSISTENCY: server.accept_consistency,
            Stage.UNMASK: server.accept_unmask,
        }
        if step.stage not in takes:
            raise ViolationError(f"there is no step of secure aggregation at stage {step.stage}")
        takes[step.stage](bytes.fromhex(step.device_id), step.message)

    def close(self, stage: Stage, counted: Iterable[DeviceId]) -> None:
        """End a stage; raises CohortError where too few are left."""
        match stage:
            case Stage.KEYS:
                self.messages = _by_name(self.server.close_keys())
            case Stage.SHARES:
                self.messages = _by_name(self.server.close_shares())
            case Stage.UPLOAD:
                survivors = self.server.close_upload()
                self.messages = dict.fromkeys(self.members & set(counted), survivors)
            case Stage.CONSISTENCY:
                self.messages = _by_name(self.server.close_consistency())
            case _:
                raise ViolationError(f"stage {stage} is not one that is ended")


class MaskedRound:
    """The server's side of one attempt, for all its groups. Not safe for use by several threads at once."""

    def __init__(
        self,
        plan: TaskPlan,
        config: RoundConfig,
        groups: Sequence[frozenset[DeviceId]],
        verify: VerifyLeaf,
        *,
        threads: int,
    ) -> None:
        self.config = config
        self.stage = Stage.KEYS
        self.spoiled, self.sound = list[frozenset[DeviceId]](), frozenset[DeviceId]()
        """Devices of each opened sum that did not hold, and those of all sums that did."""
        self._opened: MaskedTotal | None = None
        self._plan, self._map = plan, ContributionMap(plan.contribution)
        self._groups = [_Group(config, members, verify, threads) for members in groups]
        self._path = PATHS[plan.task.privacy.secure_aggregation][1:]  # devices train before there are keys

    @property
    def bindings(self) -> list[bytes]:
        """What the rosters of the groups that go on are bound to (R), once the stage of keys is over."""
        return [group.server.topology.binding for group in self._groups]

    @property
    def payload_bytes(self) -> int:
        """Length of a masked vector."""
        return self._groups[0].server.payload_bytes

    def message_for(self, device_id: DeviceId, stage: Stage) -> bytes:
        """Return the message to a device at the open stage; nothing where it has no part in it."""
        if stage is not self.stage:
            return b""
        group = self._group_of(device_id)
        return b"" if group is None else group.messages.get(device_id, b"")

    def accept(self, step: StepRecord, payload: bytes | Elsewhere = b"") -> None:
        """Take a device's step; raises what is wrong with it, and is then as it was. The same bytes again are welcome.

        A vector that another replica holds is summed there (`add_sum`).

        Raises ViolationError, CertificateError, CorruptDataError, ReplayError, LateError, NotFoundError.
        """
        group = self._group_of(step.device_id)
        if group is None:
            raise NotFoundError("this device has no part in that sum; nothing is lost, check in again")
        group.accept(step, payload)

    def close(self, stage: Stage, counted: Iterable[DeviceId] = ()) -> frozenset[DeviceId]:
        """End a stage and open the next; return the devices of groups that are too small to go on.

        `counted` are the devices whose contribution is in. Raises CohortError where too few groups can go on.
        """
        lost, failure = frozenset[DeviceId](), None
        for group in tuple(self._groups):
            try:
                group.close(stage, counted)
            except CohortError as error:
                failure = error
                lost |= group.members
                self._groups.remove(group)
        if failure is not None and len(self._groups) < self._fewest_groups:
            raise failure
        self.stage = self._path[self._path.index(stage) + 1]
        return lost

    @property
    def _fewest_groups(self) -> int:
        return 1 if self._plan.task.privacy.group_mean == "mean" else MIN_ROBUST_GROUPS

    @property
    def elsewhere(self) -> tuple[frozenset[DeviceId], ...]:
        """The devices whose vectors count and are not in a sum yet, sum by sum."""
        return tuple(frozenset(DeviceId(device.hex()) for device in group.server.elsewhere) for group in self._groups)

    @property
    def num_words(self) -> int:
        """Number of words of a masked vector."""
        return self.payload_bytes * 8 // self.ring_bits

    @property
    def ring_bits(self) -> int:
        """Width in bits of a masked vector's words on the wire."""
        return self.config.numbers.ring_bits

    def add_sum(self, device_ids: Sequence[DeviceId], words: Words) -> None:
        """Add what other replicas added up, of devices of one sum; raises ViolationError for one not waited for."""
        group = self._group_of(device_ids[0]) if device_ids else None
        if group is None:
            raise ViolationError("a sum of masked vectors is of no group of this round; it was not added")
        group.server.add_sum([bytes.fromhex(device_id) for device_id in device_ids], words)

    @property
    def can_open(self) -> bool:
        """True if every group's sum can be opened now."""
        return all(group.server.can_open for group in self._groups)

    def open(self) -> MaskedTotal:
        """Return the sums with the noise that the task promises, combined as it says; the same result every time.

        A sum with fresh noise each time would tell more than was promised. A group's sum that does not pass its checks
        is left out as long as enough others do. Raises CohortError where secrets lack shares, CorruptDataError where
        too few sums pass.
        """
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> MaskedTotal:
        began, privacy = time.perf_counter(), self._plan.task.privacy
        totals, suspects, shares, unclipped = list[Total](), list[Suspect](), list[float](), 0
        failure, self.spoiled, self.sound = None, [], frozenset()
        for group in self._groups:
            try:
                opening = group.server.open(noise_allowance(self.config, privacy.dp))
                sum_ = noised(opening.sum, self.config, privacy.dp, secret_bytes)
            except CorruptDataError as error:
                failure = error
                self.spoiled.append(group.uploaded)
                continue
            self.sound |= group.uploaded
            unclipped += opening.sum.num_unclipped
            suspects += opening.suspects
            totals.append(self._map.total(sum_.opened))
            if sum_.unclipped_share is not None:
                shares.append(sum_.unclipped_share)
        if failure is not None and len(totals) < self._fewest_groups:
            raise failure
        total = combine(totals, privacy.group_mean)
        return MaskedTotal(
            total=total,
            share_clipped=None if privacy.dp.is_on else 1 - unclipped / max(total.num_reports, 1),
            next_clip=clip_after(self.config, privacy.dp, shares) if privacy.dp.is_adaptive else None,
            suspects=tuple(suspects),
            num_groups=len(totals),
            seconds=time.perf_counter() - began,
        )

    def replay(
        self,
        steps: Iterable[StepRecord],
        stage: Stage,
        counted: Iterable[DeviceId],
        payload_of: Callable[[DeviceId], bytes | Elsewhere],
    ) -> None:
        """Make everything again that led to `stage` (CLOSING counts as the last): stored steps, stage by stage.

        Raises what made it fail, where stored steps do not hold any more (an expired certificate, a damaged file).
        """
        stored = list(steps)
        until = self._path[-1] if stage is Stage.CLOSING else stage
        for place in self._path:
            for step in stored:
                if step.stage is place:
                    self.accept(step, payload_of(step.device_id) if place is Stage.UPLOAD else b"")
            if place is until:
                return
            self.close(place, counted)

    def _group_of(self, device_id: DeviceId) -> _Group | None:
        return next((group for group in self._groups if device_id in group.members), None)


def suspects_in_words(suspects: Sequence[Suspect]) -> list[str]:
    """Return pairs of devices of which one returned or made a share that did not fit, by the start of their ids."""
    return [f"{suspect.holder.hex()[:8]}/{suspect.owner.hex()[:8]}" for suspect in suspects]


def _by_name(messages: Mapping[bytes, bytes]) -> dict[DeviceId, bytes]:
    return {DeviceId(device.hex()): message for device, message in messages.items()}
