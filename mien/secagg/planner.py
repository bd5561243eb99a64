"""Terms of a round, chosen before it begins: numbers that cannot wrap, a graph that is safe, the bytes of each stage.

A plan that does not fit is refused here, with the field to change; nothing is discovered in the middle of a round.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final, Self

from mien.contribution import ContributionLayout
from mien.errors import ConfigError
from mien.log.entries import LogEntry, attempt_subject, round_entry
from mien.protocol.canonical import task_sha256
from mien.protocol.ids import AttemptNumber, ModelId, RoundNumber, TaskId
from mien.secagg.canonical import ID_BYTES, bitmap_size, tagged_hash
from mien.secagg.config import CONFIG_BYTES, CohortTerms, RoundConfig, StageDeadlines
from mien.secagg.graph import Profile, default_neighbourhood, resolve
from mien.secagg.keys import KEM_KEY_BYTES, PART_BYTES, SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES
from mien.secagg.noise import honest_survivors, noise_terms, with_room_for_noise
from mien.secagg.quantise import MAX_FRAC_BITS, NumberFormat, packed_size
from mien.secagg.vector import ContributionMap, VectorLayout
from mien.specs import ModelSpec, TaskSpec

PROFILES: Final = {
    "malicious_server": Profile.MALICIOUS_SERVER,
    "honest_but_curious": Profile.HONEST_BUT_CURIOUS,
}
"""Profiles by the names that tasks and devices' settings use."""

DEFAULT_MAX_WEIGHT: Final = 64
MIN_LEVEL_BITS: Final = 8
"""An element's clip range has at least 2^8 steps on each side of zero; coarser rounding is refused."""

_FACE_INPUT: Final = struct.Struct(">IIIff")


def plan_numbers(
    n_max: int,
    *,
    l2_clip: float,
    coordinate_clip: float = 1.0,
    max_weight: int | None = None,
    ring_bits: int = 32,
    metric_bound: float = 64.0,
    noise_bound: int = 0,
) -> NumberFormat:
    """Return the finest number format under which a sum over `n_max` devices cannot wrap.

    Without a `max_weight` it is 64, or what still leaves 2^16 steps (2^13 in a ring of 24 bits) on each side of zero,
    at least 1. Raises ConfigError where fewer than 2^8 steps would be left.
    """
    if n_max < 1:
        raise ConfigError(f"n_max is {n_max}; it must be at least 1")
    room = (1 << (ring_bits - 1)) - 1 - noise_bound
    if max_weight is None:
        wanted = 1 << (16 if ring_bits == 32 else 13)
        max_weight = max(1, min(DEFAULT_MAX_WEIGHT, room // (n_max * (wanted + 1))))
    steps = room // (n_max * max_weight) - 1
    frac_bits = _fraction_bits(steps, coordinate_clip)
    if steps < 1 << MIN_LEVEL_BITS or frac_bits < 0:
        raise ConfigError(
            f"a ring of {ring_bits} bits leaves {max(steps, 0)} steps for {n_max} devices of weight {max_weight}; "
            f"{1 << MIN_LEVEL_BITS} are needed: lower max_weight, plan fewer devices or take 32 bits"
        )
    metric_frac_bits = max(0, min(16, _fraction_bits(steps, metric_bound)))
    numbers = NumberFormat(
        ring_bits, min(frac_bits, MAX_FRAC_BITS), l2_clip, coordinate_clip, max_weight, metric_bound, metric_frac_bits
    )
    numbers.check_no_wrap(n_max, noise_bound)
    return numbers


def _fraction_bits(steps: int, bound: float) -> int:
    """Return the largest f with bound * 2^f <= steps."""
    if not (steps >= 1 and 0 < bound < math.inf):
        return -1
    f = math.floor(math.log2(steps / bound))
    return f if bound * 2.0**f <= steps else f - 1


@dataclass(frozen=True)
class RoundIds:
    """Ids of an attempt, its round and their files: raw ids and hashes as `RoundConfig` holds them."""

    task_id: bytes
    round: RoundNumber
    attempt: AttemptNumber
    model_sha256: bytes
    statement_sha256: bytes

    @classmethod
    def of(
        cls,
        task: TaskSpec,
        task_id: TaskId,
        round_number: RoundNumber,
        attempt: AttemptNumber,
        model: ModelSpec,
        model_id: ModelId,
        *,
        public_shard: str = "",
        shared: bytes = b"",
    ) -> Self:
        """Return the ids of an assignment, as each side makes them from what it holds itself.

        `public_shard` is the SHA-256 of the model's public faces in hex, empty where it has none; `shared` are the
        words that the method's server tells all devices alike (`mien.methods.base.shared_words`).
        """
        return cls(
            raw_task_id(task_id),
            round_number,
            attempt,
            bytes.fromhex(model_id),
            statement_sha256(task.method, model, public_shard, shared),
        )

    def entry(self, task: TaskSpec, contribution: ContributionLayout) -> LogEntry:
        """Return the log's entry of the attempt: all that its keys are bound to, and plain sums have as well."""
        return round_entry(
            *(self.task_id.hex(), self.round, self.attempt),
            task_sha256=task_sha256(task),
            model_sha256=self.model_sha256.hex(),
            layout_sha256=contribution.sha256,
            statement_sha256=self.statement_sha256.hex(),
        )


def raw_task_id(task_id: TaskId) -> bytes:
    """Return a task's id as `RoundConfig` and the log hold it: 16 bytes."""
    return tagged_hash("task", task_id.encode())[:ID_BYTES]


def log_subject(task_id: TaskId, round_number: RoundNumber, attempt: AttemptNumber) -> str:
    """Return the subject of an attempt's entries in the log."""
    return attempt_subject(raw_task_id(task_id).hex(), round_number, attempt)


def statement_sha256(method: str, model: ModelSpec, public_shard: str = "", shared: bytes = b"") -> bytes:
    """Return the hash of all that a device takes in beside task, parameters and lanes, which have hashes of their own.

    A server that tells one device another face input, say, could turn the others' updates into nothing and read that
    device's out of the sum. What is not here no device may read in a round: only thresholds are left out, which are
    added to a model later. Graphs are not here either: they come with a signed release alone, and differ by engine.
    """
    face, patterns = model.input, (pattern.encode() for pattern in model.trainable)
    numbers = _FACE_INPUT.pack(face.width, face.height, face.dim, face.mean, face.scale)
    return tagged_hash(
        "statement",
        method.encode(),
        *(model.backbone.encode(), model.source.encode(), model.terms.encode()),
        *(bytes.fromhex(model.layout_sha256), tagged_hash("patterns", *patterns)),
        *(numbers, face.colour.encode(), bytes.fromhex(public_shard), shared),
    )


def largest_group(task: TaskSpec) -> int:
    """Return the most devices that one sum of the task can hold: groups are dealt among all that are selected."""
    groups = task.privacy.groups
    return task.cohort.size if groups == 1 else math.ceil(task.cohort.num_selected / groups)


def smallest_sum(task: TaskSpec) -> int:
    """Return the fewest devices whose sum may be opened: the quorum, or one group's share of it."""
    return task.cohort.min_reports if task.privacy.groups == 1 else task.privacy.min_cohort


def fewest_hidden(task: TaskSpec) -> int:
    """Return among how many devices each hides in the smallest sum: whoever runs the sources knows what they sent."""
    return smallest_sum(task) - task.cohort.min_labelled


def plan_round(
    task: TaskSpec, contribution: ContributionLayout, ids: RoundIds, *, l2_clip: float | None = None
) -> RoundConfig:
    """Return the terms of an attempt of `task`, k and t by its profile's rule; `l2_clip` replaces the task's own.

    S is the L2 norm of a whole update: that clip, and beside it those of lanes that have one of their own.

    Raises ConfigError where the task's numbers cannot be added up or a sum would hold too many devices, CohortError
    where it holds fewer than 3.
    """
    profile, privacy, n_max = PROFILES[task.privacy.secure_aggregation], task.privacy, largest_group(task)
    mapped = ContributionMap(contribution).vector_layout
    default_neighbourhood(profile, n_max)
    cohort, deadlines = CohortTerms(profile, smallest_sum(task), n_max), task.deadlines
    if privacy.dp.mechanism == "skellam":
        honest_survivors(cohort, privacy.dp)  # nobody left to make noise is refused here
    return RoundConfig(
        task_id=ids.task_id,
        task_sha256=bytes.fromhex(task_sha256(task)),
        round=ids.round,
        attempt=ids.attempt,
        model_sha256=ids.model_sha256,
        layout_sha256=bytes.fromhex(contribution.sha256),
        statement_sha256=ids.statement_sha256,
        size=mapped.size,
        num_metrics=mapped.num_metrics,
        numbers=with_room_for_noise(
            plan_numbers(
                n_max,
                l2_clip=math.hypot(
                    privacy.l2_clip if l2_clip is None else l2_clip, *(lane.clip for lane in contribution.summed)
                ),
                coordinate_clip=privacy.coordinate_clip,
                max_weight=privacy.max_weight,
                ring_bits=privacy.ring_bits,
            ),
            privacy.dp,
            n_max,
        ),
        cohort=cohort,
        noise=noise_terms(privacy.dp),
        deadlines=StageDeadlines(
            *(
                math.ceil(seconds)
                for seconds in (
                    deadlines.keys_s,
                    deadlines.shares_s,
                    deadlines.upload_s,
                    deadlines.consistency_s,
                    deadlines.unmask_s,
                )
            )
        ),
    )


@dataclass(frozen=True)
class StageBytes:
    """Bytes that a device receives at the beginning of a stage, and then sends."""

    received: int
    sent: int


def stage_bytes(config: RoundConfig, n: int, *, certificate_bytes: int = 500) -> dict[str, StageBytes]:
    """Return the bytes of each stage of secure aggregation for one of `n` devices, by the stage's name.

    Certificates are counted with `certificate_bytes` each. The honest-but-curious profile has no "consistency".
    """
    cohort, hood = config.cohort, resolve(config.cohort.profile, n, config.cohort.k, config.cohort.t)
    layout = VectorLayout(config.size, config.num_metrics)
    vector = packed_size(layout.num_words, config.numbers.ring_bits)
    entry = 16 + 32 + 32 + KEM_KEY_BYTES + 32 + SIGNATURE_BYTES + 2 + certificate_bytes
    sealed, survivors = 3 + hood.k * (1 + SEALED_BYTES), 2 + bitmap_size(n)
    depth = 32 * (n - 1).bit_length()
    roster = 5 + (n * entry if n <= 256 else 16 * n + depth + hood.k * (entry + depth))
    masked = 2 + 32 + 1 + (hood.k + 1) // 2 * PART_BYTES + SIGNATURE_BYTES  # half of the neighbours have higher ids
    released = 3 + hood.k * (1 + SHARE_BYTES)
    stages = {
        "keys": StageBytes(2 + CONFIG_BYTES, 2 + entry),
        "shares": StageBytes(roster, sealed + 32 + SIGNATURE_BYTES),
        "upload": StageBytes(bitmap_size(n) + sealed, masked + vector),
    }
    if not cohort.profile.has_consistency_round:
        return {**stages, "unmask": StageBytes(survivors, released)}
    proof = 4 + hood.t * (16 + SIGNATURE_BYTES)
    return {
        **stages,
        "consistency": StageBytes(survivors, 2 + SIGNATURE_BYTES),
        "unmask": StageBytes(proof, released),
    }
