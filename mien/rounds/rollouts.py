"""Staged roll-outs as pure functions: what is asked of phones at a stage, and what becomes of their answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from mien.errors import ConfigError
from mien.evaluation.fleet import FleetFigures
from mien.evaluation.rollout_spec import RollOutSpec
from mien.format import cut
from mien.methods.federated_evaluation import EvaluationOptions, privacy_of
from mien.protocol.canonical import model_from_json, parse_json, to_canonical_json
from mien.protocol.ids import AttemptNumber, ModelId, PopulationId, TaskId
from mien.records import from_mapping, to_mapping
from mien.specs import DeadlineSpec, TaskSpec, Threshold

_PREFIX: Final = "roll-out/"


class RollOutState(StrEnum):
    """State of a roll-out.

    `EVALUATING`: phones of the stage's share compare the model with the one before. `PASSED`: it held, and an operator
    is to say that it goes on. `HELD`: nothing can be said of it, or what was said cannot be carried out; an operator is
    to look. `DONE`: it has reached its last stage. `REPLACED`: a roll-back or another release took its
    place.
    """

    EVALUATING = "evaluating"
    PASSED = "passed"
    HELD = "held"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"
    REPLACED = "replaced"

    @property
    def is_over(self) -> bool:
        """True if the roll-out can never go on."""
        return self not in (RollOutState.EVALUATING, RollOutState.PASSED, RollOutState.HELD)


@dataclass(frozen=True)
class RollOutRecord:
    """A roll-out as it stands. `stage` counts from 0, `attempt` the evaluations of this stage from 1.

    `task_id` is the evaluation's task, `figures` what the last one said. `version` grows with every change.
    """

    id: int
    model_id: ModelId
    reference_model_id: ModelId
    population: PopulationId
    spec_json: bytes = field(repr=False)
    state: RollOutState
    stage: int
    attempt: AttemptNumber
    started_ms: int
    started_by: str
    changed_ms: int
    task_id: TaskId | None = None
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    version: int = 1

    @property
    def spec(self) -> RollOutSpec:
        """Specification that the operator gave."""
        return spec_from_json(self.spec_json)

    @property
    def share(self) -> float:
        """The share of the phones that has the model."""
        return self.spec.stages[self.stage]


def spec_to_json(spec: RollOutSpec) -> bytes:
    """Return a roll-out's description as it travels and is stored."""
    return to_canonical_json(to_mapping(spec))


def spec_from_json(data: bytes) -> RollOutSpec:
    """Return a roll-out's description; raises CorruptDataError, or ConfigError naming the field."""
    value = parse_json(data, what="the roll-out")
    return from_mapping(RollOutSpec, value if isinstance(value, dict) else {}, where="roll-out.")


# What is asked


def threshold_for(spec_json: bytes, model_id: ModelId, fmr: float) -> Threshold:
    """Return the threshold of phones at a false match rate: as `device_sdk.people.recogniser.operating_point`.

    Raises ConfigError for a model without one.
    """
    own = [known for known in model_from_json(spec_json)[0].thresholds if known.model_id == model_id]
    strict = [known for known in own if known.fmr <= fmr]
    if not strict:
        raise ConfigError(
            f"model {model_id[:12]} has no threshold for a false match rate of at most {fmr:g}; run model evaluate "
            "--keep-thresholds on a set that can measure it, or raise gates.fmr"
        )
    return max(strict, key=lambda known: (known.fmr, -known.value))


def evaluation_task(
    spec: RollOutSpec,
    *,
    name: str,
    model_id: ModelId,
    threshold: float,
    reference: tuple[ModelId, float] | None = None,
    share: float = 1.0,
) -> TaskSpec:
    """Return the task in which phones measure a model and, where a reference is given, that one beside it."""
    other, other_threshold = ("", None) if reference is None else reference
    options = EvaluationOptions(threshold, other, other_threshold, share=share, public_images=spec.public_images)
    return TaskSpec(
        name=name,
        method="federated_evaluation",
        rounds=1,
        population=spec.population,
        model_id=model_id,
        cohort=spec.cohort,
        deadlines=DeadlineSpec(**to_mapping(spec.deadlines)),
        privacy=privacy_of(min_cohort=spec.min_cohort, is_paired=options.is_paired, bins=options.bins),
        options=to_mapping(options),
    )


def task_name(roll_out: RollOutRecord) -> str:
    """Return the name of a stage's evaluation."""
    return f"roll-out-{roll_out.model_id[:12]}-{roll_out.id}-{roll_out.stage + 1}-{roll_out.attempt}"


def task_token(roll_out: RollOutRecord) -> str:
    """Return the token by which submitting a stage's evaluation again, after a crash, gives the same task."""
    return f"{_PREFIX}{roll_out.id}/{roll_out.stage}/{roll_out.attempt}"


def id_in_token(token: str) -> int | None:
    """Return the roll-out whose evaluation a task is, by its token; None for any other task."""
    number = token.removeprefix(_PREFIX).partition("/")[0]
    return int(number) if token.startswith(_PREFIX) and number.isdecimal() else None


# What becomes of the answer


@dataclass(frozen=True)
class Move:
    """Changes committed at once: the roll-out afterwards, and a release to a larger share, or the way back."""

    after: RollOutRecord
    widens: bool = False
    rolls_back: bool = False


def answered(roll_out: RollOutRecord, found: FleetFigures, reasons: Sequence[str]) -> Move:
    """Return the move that follows from phones' figures, and from the gates' reasons against the model."""
    told = replace(roll_out, figures=in_short(found))
    if reasons:
        why = cut("phones say: " + "; ".join(reasons))
        return Move(replace(told, state=RollOutState.ROLLED_BACK, reason=why), rolls_back=True)
    if roll_out.stage + 1 == len(roll_out.spec.stages):
        return Move(replace(told, state=RollOutState.DONE, reason="done; it held at its last stage"))
    if roll_out.spec.widen == "manual":
        why = "held; fleet continue gives it to the next share of the phones"
        return Move(replace(told, state=RollOutState.PASSED, reason=why))
    return widened(told)


def widened(roll_out: RollOutRecord) -> Move:
    """Return a roll-out at its next stage: over where that is everybody."""
    after = replace(roll_out, stage=roll_out.stage + 1, attempt=AttemptNumber(1), task_id=None, reason="")
    is_all = after.spec.stages[after.stage] >= 1
    state = RollOutState.DONE if is_all else RollOutState.EVALUATING
    return Move(replace(after, state=state, reason="done; all phones have it" if is_all else ""), widens=True)


def continued(roll_out: RollOutRecord) -> Move:
    """Return the move that an operator's consent makes of a roll-out; raises ConfigError where it goes on by itself."""
    if roll_out.state is RollOutState.PASSED:
        return widened(roll_out)
    if roll_out.state is not RollOutState.HELD:
        raise ConfigError(f"roll-out {roll_out.id} is {roll_out.state}; only one that is passed or held waits for you")
    after = replace(
        roll_out, state=RollOutState.EVALUATING, attempt=AttemptNumber(roll_out.attempt + 1), task_id=None, reason=""
    )
    return Move(after)


def held(roll_out: RollOutRecord, reason: str) -> Move:
    """Return a roll-out that waits for an operator, at the share that it has reached."""
    return Move(replace(roll_out, state=RollOutState.HELD, reason=cut(reason)))


def in_short(found: FleetFigures) -> dict[str, float]:
    """Return the numbers that people look at first, flat; the model's evaluation has all of them."""
    told: dict[str, float] = {"phones": found.num_phones, "mated": found.num_mated, "non_mated": found.num_non_mated}
    for prefix, model in (("", found.model), ("reference_", found.reference)):
        if model is not None:
            told |= {
                f"{prefix}tar": model.tar.value,
                f"{prefix}fmr": model.fmr.value,
                f"{prefix}eer": model.eer,
                f"{prefix}mean_non_mated": model.monitors.mean_non_mated,
                f"{prefix}effective_dimension": model.monitors.effective_dimension,
            }
    if found.tar_drop is not None:
        told |= {
            "tar_drop": found.tar_drop.value,
            "tar_drop_low": found.tar_drop.low,
            "tar_drop_high": found.tar_drop.high,
        }
    return {name: float(value) for name, value in sorted(told.items())}
