"""Terms of a round: the order to this device and the needs of its masked sum, kept with what was trained for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mien.contribution import ContributionLayout
from mien.errors import ViolationError
from mien.protocol.canonical import task_sha256
from mien.protocol.ids import ModelId
from mien.protocol.rounds import RoundRef
from mien.secagg import Assignment, AttemptId, ContributionMap, DevicePolicy, RoundConfig
from mien.secagg.planner import PROFILES, RoundIds, plan_round, smallest_sum
from mien.specs import ModelSpec, TaskSpec


@dataclass(frozen=True)
class Asked:
    """Order of a round to this device: its task, as the device's own sum sees it, and the contribution's form."""

    task: TaskSpec
    layout: ContributionLayout


@dataclass(frozen=True)
class SumTerms:
    """Device's own part of a round under secure aggregation, kept with what it trained for the round.

    `shared` is the hash, in hex, of what the method told this device and has to tell all others alike, `public_shard`
    that of the public faces that came with the model, `pictures` that of the pictures behind the contribution.
    """

    task: TaskSpec
    model_id: ModelId
    model: ModelSpec
    layout: ContributionLayout
    shared: str = ""
    public_shard: str = ""
    pictures: str = ""

    def assignment(self, ref: RoundRef) -> Assignment:
        """Return the assignment that message 0 must agree with."""
        ids, vector = self._ids(ref), ContributionMap(self.layout).vector_layout
        return Assignment(
            task_id=ids.task_id,
            task_sha256=bytes.fromhex(task_sha256(self.task)),
            model_sha256=ids.model_sha256,
            layout_sha256=bytes.fromhex(self.layout.sha256),
            statement_sha256=ids.statement_sha256,
            size=vector.size,
            num_metrics=vector.num_metrics,
        )

    def attempt_id(self, ref: RoundRef) -> AttemptId:
        """Return the attempt's name in the log."""
        return AttemptId(self._ids(ref).task_id, ref.round, ref.attempt)

    def policy(
        self, min_cohort: int, admitted_by_unix_s: float = math.inf, *, counts_attested: bool = False
    ) -> DevicePolicy:
        """Return the policy for message 0: the owner's floor and whom it counts, and what the task itself promises."""
        from mien.methods.registry import find_method  # loads every method, which a gallery alone need not

        needed = find_method(self.task.method).requirements(self.task)
        return DevicePolicy(
            min_cohort=max(needed.fewest(min_cohort), smallest_sum(self.task)),
            admitted_by_unix_s=admitted_by_unix_s,
            counts_attested=counts_attested,
            profiles=frozenset({PROFILES[self.task.privacy.secure_aggregation]}),
        )

    def planned(self, ref: RoundRef, l2_clip: float | None = None) -> RoundConfig:
        """Return the terms that this device plans for a sum; `l2_clip` is an adaptive clip, as it was told."""
        return plan_round(self.task, self.layout, self._ids(ref), l2_clip=l2_clip)

    def check_numbers(self, unverified: RoundConfig, ref: RoundRef) -> None:
        """Raise ViolationError unless numbers are rounded as this device plans it too; an adaptive clip is given.

        Coarser steps would make one device weigh more than the promised noise hides.
        """
        clip = unverified.numbers.l2_clip if self.task.privacy.dp.is_adaptive else None
        if unverified.numbers != self.planned(ref, clip).numbers:
            raise ViolationError(
                "the round clips or rounds updates otherwise than its task says; leave the round, and tell the operator"
            )

    def _ids(self, ref: RoundRef) -> RoundIds:
        return RoundIds.of(
            *(self.task, ref.task_id, ref.round, ref.attempt, self.model, self.model_id),
            public_shard=self.public_shard,
            shared=bytes.fromhex(self.shared),
        )
