"""A method: a frozen record of pure functions, a device half and a server half.

A method's device half names the objective that a runtime (torch, ONNX Runtime, ExecuTorch) minimises and builds the
contribution in numpy; its server half turns a cohort's total into the next state. State goes in, new state comes out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, Contribution, ContributionLayout, Total
from mien.errors import ConfigError, NonFiniteError
from mien.layout import ParameterPart, Vector
from mien.protocol.ids import ModelId
from mien.specs import LocalSpec, ServerSpec, TaskSpec

Crops = NDArray[np.uint8]
Embeddings = NDArray[np.float32]
Options = TypeVar("Options")


@dataclass(frozen=True)
class StepRule:
    """Change to a step's gradient g on the trained part before SGD takes it; by default none.

    Weight decay counted in g, it becomes `gradient_scale` g + `offset` + `proximal` (theta - theta_received), with
    `offset` of shape (part.size,). Private tensors keep their own gradient. Federated optimisers are arithmetic on
    these three: FedProx's proximal term, SCAFFOLD's c - c_i, Mime's and PFM's momentum.
    """

    gradient_scale: float = 1.0
    offset: Vector | None = field(default=None, repr=False)
    proximal: float = 0.0

    @property
    def changes_nothing(self) -> bool:
        """True if steps are those of plain SGD."""
        return self.gradient_scale == 1.0 and self.offset is None and self.proximal == 0.0


@dataclass(frozen=True)
class Objective:
    """Objective of local training: a named loss, its private tensors, fixed inputs and constants.

    `private` tensors are trained beside the model's part and never sent; `fixed` ones are inputs; `per_crop` ones are
    inputs with one row a crop (targets, sample weights), which follow their crops into batches; `unit_norm` names
    private tensors whose rows are renormalised to length 1 after every step. `velocity` is the momentum with which
    private tensors begin, by name, as `Trained` gave it (0 where it is not given); `step_rule` changes the steps on
    the model's part.
    """

    name: str
    private: Arrays = field(default_factory=dict, repr=False)
    fixed: Arrays = field(default_factory=dict, repr=False)
    per_crop: Arrays = field(default_factory=dict, repr=False)
    constants: Mapping[str, float] = field(default_factory=dict)
    unit_norm: tuple[str, ...] = ()
    velocity: Arrays = field(default_factory=dict, repr=False)
    step_rule: StepRule = field(default_factory=StepRule)


@dataclass(frozen=True)
class Trained:
    """Result of local training: the part's elements, the private tensors, and the loss before and after.

    `received` is the whole flat vector that training started from. `velocity` is the private tensors' momentum after
    the last step, by name. Raises NonFiniteError for NaN or infinity in any of them but `received`: kept private
    tensors would keep the device out of every later round.
    """

    part: ParameterPart = field(repr=False)
    received: Vector = field(repr=False)
    values: Vector = field(repr=False)
    private: Arrays = field(repr=False)
    loss_before: float
    loss_after: float
    num_steps: int
    velocity: Arrays = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        arrays = (self.values, *self.private.values(), *self.velocity.values())
        if not all(np.isfinite(array).all() for array in arrays):
            raise NonFiniteError("local training diverged to NaN or infinity; lower local.lr")

    @cached_property
    def theta(self) -> Vector:
        """The whole flat vector after training: what a personal model needs, and an update does not."""
        return self.part.scatter(self.received, self.values)


def never_stop() -> bool:
    """Return False: training goes on to its end."""
    return False


@dataclass(frozen=True)
class TrainingJob:
    """Training order of a device half: `part` (and the private tensors) on `crops`, from `theta`, as `local` says."""

    theta: Vector = field(repr=False)
    part: ParameterPart = field(repr=False)
    crops: Crops = field(repr=False)
    objective: Objective
    local: LocalSpec
    seed: int


class Runtime(Protocol):
    """Runs a model on a device: torch is the reference, mobile runtimes do the same arithmetic."""

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return L2-normalised embeddings (N, dim) of aligned crops (N, H, W, 3) uint8 RGB."""
        ...

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the same embeddings as the network gives them, not normalised."""
        ...

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return the result of local training for a job.

        `should_stop` is asked before every step; raises LateError once it says so, and nothing has changed.
        """
        ...


@dataclass(frozen=True)
class DeviceInput:
    """All that a device half may look at: the task, the global model, this device's crops and private state.

    `private` is what the device kept from its last participation (empty at first), `reply` what the server answered
    to what it revealed, `public_crops` the aligned crops of public faces of the bundle (K, H, W, 3) with
    `public_labels` (K,), both empty where the bundle has none. `labels` (N,) number the identities of `crops` from 0
    where a device holds several, and an identity keeps its number; None says that all crops are of one. `device` is the
    name by which the server knows this device, for what follows from it and from public words; `secret` are bytes of
    this round that the device alone knows, for what the server must not foresee: empty in a simulation. `models` holds
    the parameters of the other models that the task names (`Requirements.other_models`), by their ids.
    """

    task: TaskSpec
    part: ParameterPart
    dim: int
    theta: Vector = field(repr=False)
    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] | None = field(default=None, repr=False)
    private: Arrays = field(default_factory=dict, repr=False)
    reply: Arrays = field(default_factory=dict, repr=False)
    public_crops: Crops | None = field(default=None, repr=False)
    public_labels: NDArray[np.int64] | None = field(default=None, repr=False)
    seed: int = 0
    device: str = ""
    secret: bytes = field(default=b"", repr=False)
    models: Mapping[str, Vector] = field(default_factory=dict, repr=False)

    def job(self, objective: Objective, *, crops: Crops | None = None, local: LocalSpec | None = None) -> TrainingJob:
        """Return the training of this device's part: on its own crops and as its task says, unless told otherwise."""
        crops, local = self.crops if crops is None else crops, local or self.task.local
        return TrainingJob(self.theta, self.part, crops, objective, local, self.seed)


@dataclass(frozen=True)
class DeviceOutput:
    """A device's contribution, and what it keeps for next time (never sent)."""

    contribution: Contribution
    private: Arrays = field(repr=False)
    metrics: Mapping[str, float] = field(default_factory=dict)


def why_idle(output: DeviceOutput) -> str:
    """Return why a device's training left its part of the model exactly as it was; empty where it did not.

    Empty too for a method that sends no update of the model, and for a round in which nobody was to train.
    """
    contribution = output.contribution
    updates = [place for name, place in contribution.layout.slices.items() if name in UPDATES]
    has_trained = bool(updates) and "loss_before" in output.metrics
    if not has_trained or any(contribution.vector[place].any() for place in updates):
        return ""
    if output.metrics.get(IDENTITIES) == 1:
        return ONE_CLASS
    return "its loss has no gradient at this model, or its rate is 0"


UPDATES: Final = frozenset({"delta", "deltas"})
"""Lanes with a device's change of the model: a method has at most one of them."""

IDENTITIES: Final = "identities"
"""Metric of a device whose classifier is over its own identities alone: how many there are."""

ONE_CLASS: Final = "its classifier has one class, over which no loss has a gradient"


@dataclass(frozen=True)
class ServerState:
    """Server state, carried from round to round.

    `theta` is the global model, `arrays` are public by nature (momentum), `revealed` holds what devices showed in
    clear, per device, or by the name `IN_TOTAL` all together; it is stored encrypted. `figures` are numbers that an
    operator is shown of the round, `lacks` says why there is no model of the state yet: `theta` is as it was.
    `evidence` is what a model was chosen by, a record to be kept with it.
    """

    theta: Vector = field(repr=False)
    arrays: Arrays = field(default_factory=dict, repr=False)
    revealed: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    rounds: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)
    lacks: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


IN_TOTAL: Final = "total"
"""Name, in `ServerState.revealed`, of what all devices of a task showed together: no device has it."""


def objective_name(objective: str, margin: float = 0.5) -> str:
    """Return an objective's name in graphs, whatever its tensors' shapes; that of arcface has its margin built in."""
    return f"{objective}_margin{float(margin)!r}" if objective == "arcface" else objective


@dataclass(frozen=True)
class Requirements:
    """Requirements of a task's rounds; the defaults need a model and any device of the population.

    `public_faces`: devices need a public shard with the model, so that a task without one is refused when it is
    submitted and not on every phone, and of `public_people` at least. `validators`: a round has the method's stage in
    which they judge candidates.
    `objective` names what devices minimise, as `objective_name` does, so that none is asked that has no graph of it;
    empty where any device will do. `other_models` are the ids of those that a device needs beside the round's, `share`
    says which devices may be asked: those in the first so many of the roll-out of the task's model. `caution` warns of
    a setting that is allowed and trains little or nothing. `shared_reply`
    names arrays of the reply that are the same for all devices of a round: those of a masked one agree on them
    (`shared_words`), so that a server that tells one device something else gets no sum. `phones_as_one`: where what is
    told weighs devices, so many of them may hide another no better than one that counts alike. `why_synchronous` says
    what needs one cohort after another; where it is empty, asynchronous mode may weigh the update of an older model
    (`mien.rounds.buffered`): devices are told no more than a model, and theirs is all that is sent.
    """

    public_faces: bool = False
    public_people: int = 1
    validators: bool = False
    objective: str = ""
    other_models: tuple[ModelId, ...] = ()
    share: float = 1.0
    caution: str = ""
    shared_reply: tuple[str, ...] = ()
    phones_as_one: int = 1
    why_synchronous: str = "nothing shows that its step holds for updates to an earlier model"

    def fewest(self, floor: int) -> int:
        """Return the fewest devices of a sum that hide each of them as well as a sum over `floor` hides equals."""
        return floor * self.phones_as_one


class Property(Enum):
    """Promise of a method whatever the task, and what others may do because of it.

    SUM_ONLY: the device half sends the update times a factor as lane `delta` (`averaging.update_addends`) and lets
    nothing else depend on it, so that a simulation may work out the sum of updates without making a single one.
    REVEALS: in a task that opts in by `privacy.reveals`, a contribution may have lanes that the server sees of one
    device alone; a method without it never has any. SEVERAL_PEOPLE: the device half takes the crops of several people,
    whom `labels` number. UNLABELLED: it takes those of all people of a phone without labels, which only a source has.
    A method with neither of these two takes the crops of one person. FORWARD_ONLY: the device half embeds and never
    trains, so that any device that has the model can do it, and a round has neither losses nor a lane `delta`.
    DETERMINISTIC: asked again a device sends the same numbers, so that two sums tell what whoever left had sent; once a
    sum was opened and is of no use, the task pauses, and nobody is asked again before an operator has looked.
    ADDS_UP: rounds are cohorts of one model, the task's first, and their sums add up in the server's state. A device is
    in one opened sum of a task at most. Each round's model is made of the whole total and no round begins from it; what
    gates say of it takes nothing back.
    """

    SUM_ONLY = "sum_only"
    REVEALS = "reveals"
    SEVERAL_PEOPLE = "several_people"
    UNLABELLED = "unlabelled"
    FORWARD_ONLY = "forward_only"
    DETERMINISTIC = "deterministic"
    ADDS_UP = "adds_up"


@dataclass(frozen=True)
class ValidationFaces:
    """A validator's faces: crops (N, H, W, 3) and pairs (P, 2) of them, which are mated or not, in folds from 0."""

    crops: Crops = field(repr=False)
    pairs: NDArray[np.int64] = field(repr=False)
    mated: NDArray[np.bool_] = field(repr=False)
    folds: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class ValidationInput:
    """All that a validator's half may look at: the task, candidate models, its own faces and private state."""

    task: TaskSpec
    candidates: tuple[Vector, ...] = field(repr=False)
    faces: ValidationFaces
    private: Arrays = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Validation:
    """A second stage of a round, in which validators, a role of their own, judge candidates for the next model.

    Where a task requires them, `candidates` are made of the trainers' total, each validator's `validate` gives one
    contribution of `contribution_layout`, and `server_step` takes both totals in place of the method's own. `faces` are
    the pairs that a validator makes of its labelled crops, always the same. No score is larger than `score_bound`.
    """

    contribution_layout: Callable[[TaskSpec], ContributionLayout]
    candidates: Callable[[TaskSpec, ParameterPart, ServerState, Total], tuple[Vector, ...]]
    validate: Callable[[ValidationInput, Runtime], DeviceOutput]
    server_step: Callable[[TaskSpec, ParameterPart, ServerState, Total, Total], ServerState]
    score_bound: Callable[[TaskSpec], float]
    faces: Callable[[Crops, NDArray[np.int64]], ValidationFaces]

    def validators_task(self, task: TaskSpec) -> TaskSpec:
        """Return the task as validators' own sum sees it: their cohort, nothing in clear, numbers that scores fit into.

        Both sides derive it from the trainers' task, and its hash is bound into the sum's keys. Raises ConfigError
        where the task names no validators, or promises what their sum cannot keep.
        """
        if task.validators is None:
            raise ConfigError(
                f"task {task.name!r} lets validators judge candidates and says nothing of them; add [validators] with "
                'size and min_reports, or turn federated validation off (options.validation = "off")'
            )
        if task.privacy.dp.is_on or task.privacy.groups > 1:
            raise ConfigError(
                "validators' scores have no noise and no groups of their own; with validators leave privacy.dp and "
                "privacy.groups alone"
            )
        bound = self.score_bound(task)
        lanes = [lane.size for lane in self.contribution_layout(task).summed if lane.size > 1]
        l2_clip = bound * math.sqrt(sum(lanes))
        privacy = replace(task.privacy, reveals=(), max_weight=1, coordinate_clip=bound, l2_clip=l2_clip)
        return replace(task, cohort=task.validators, validators=None, privacy=privacy)


@dataclass(frozen=True)
class Preset(Generic[Options]):
    """A paper's whole setting: how many rounds, how a device and the server step, and the method's options."""

    rounds: int
    local: LocalSpec
    options: Options
    server: ServerSpec = field(default_factory=ServerSpec)


@dataclass(frozen=True)
class Method:
    """A method of one paper, both halves side by side.

    `reply` is what a device is told with its assignment, `requirements` what a task's rounds need, `properties` what
    holds for every task. `per_identity` names the private arrays that have a row for each number of `labels`, so that a
    phone can keep each person's row with that person. `validation` is the stage in which validators take part, if there
    is one. `measured` is for a method that trains nothing: what a round's state says of the model, as a record to be
    kept.
    """

    name: str
    source: str
    options: type[Any]
    contribution_layout: Callable[[TaskSpec, ParameterPart, int], ContributionLayout]
    device_round: Callable[[DeviceInput, Runtime], DeviceOutput]
    server_start: Callable[[TaskSpec, ParameterPart, Vector], ServerState]
    server_step: Callable[[TaskSpec, ParameterPart, ServerState, Total, Mapping[str, Arrays]], ServerState]
    reply: Callable[[ServerState, str], Arrays] = lambda _state, _device: {}
    requirements: Callable[[TaskSpec], Requirements] = lambda _task: Requirements()
    properties: frozenset[Property] = frozenset()
    per_identity: tuple[str, ...] = ()
    validation: Validation | None = None
    measured: Callable[[TaskSpec, ServerState], Mapping[str, Any]] | None = None

    @property
    def trains(self) -> bool:
        """True if rounds change the model; if not, they measure it."""
        return self.measured is None

    @property
    def adds_up(self) -> bool:
        """True if sums of all rounds add up, and a device counts once."""
        return Property.ADDS_UP in self.properties

    @property
    def is_minimised(self) -> bool:
        """True if devices minimise something, for which they need its graphs where they have no torch."""
        return self.trains and Property.FORWARD_ONLY not in self.properties


EARLIER: Final = "earlier_part"
"""Name of a reply's array that holds the trained part's elements (P,) of the model of an earlier round."""

CANDIDATES: Final = "candidates"
"""Name of a validator's input: the candidates' elements of the trained part (T, P), the current weights' first."""


def reply_names(shared: tuple[str, ...], contribution: ContributionLayout) -> frozenset[str]:
    """Return the names of the arrays that a device may be told: those that all are told alike, and its own.

    Its own are answers to what it reveals, by the lanes' names. Anything else could be told to one device alone, and
    its update be read out of the sum.
    """
    return frozenset(shared) | {lane.name for lane in contribution.revealed}


def shared_words(reply: Arrays, names: tuple[str, ...]) -> bytes:
    """Return the hash of those arrays of a reply that are alike for all devices of a round; empty where none is."""
    told = [(name, np.ascontiguousarray(reply[name], "<f4")) for name in names if name in reply]
    if not told:
        return b""
    digest = hashlib.sha256()
    for name, values in told:
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.digest()
