"""FedFR: several identities a phone; a generic model for all, and a personal one that stays on the phone.

Source: Liu et al., "FedFR: Joint Optimization Federated Framework for Generic and Personalized Face Recognition" (AAAI
2022), Algorithm 1 of its supplement. Theta is the backbone's trained part, Phi the proxies of public identities, W
those of the phone's own, Pi and Omega the branch of Decoupled Feature Customization (DFC). Only N Delta-Theta and
N Delta-Phi leave the phone, as addends; W, Pi and Omega stay.

What the paper leaves open, and where its released code differs, are options with three presets (`PRESETS`); decision
record 0016 names the choices that are not options.
Legend: N own images, M public images, B images in training, L own identities, G public identities, D embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Final, Literal

import numpy as np

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError, LayoutMismatchError
from mien.layout import ParameterPart, Vector
from mien.methods.averaging import apply_mean_update, output, update_addends, update_lanes
from mien.methods.averaging import server_start as averaging_start
from mien.methods.base import (
    Crops,
    DeviceInput,
    DeviceOutput,
    Method,
    Objective,
    Preset,
    Property,
    Requirements,
    Runtime,
    ServerState,
    Trained,
)
from mien.methods.check_reply import told
from mien.methods.proxies import Indices, carry_over, class_means, one_hot_rows, own_labels, public_faces
from mien.records import BELOW_1, check_limits, positive
from mien.specs import LocalSpec, TaskSpec, from_mapping, to_mapping

W: Final = "local_proxies"
PHI: Final = "public_proxies"
PHI_START: Final = "public_proxies_at_start"
PREVIOUS: Final = "previous_part"
PARTICIPATIONS: Final = "participations"
BRANCH: Final = ("pi_weight", "pi_bias", "omega", "omega_public", "bias")
_SIMILARITY_BLOCK: Final = 1024

Positive = Annotated[float, positive(1e4)]
Share = Annotated[float, BELOW_1]
PresetName = Literal["recommended", "paper", "released_code"]


@dataclass(frozen=True)
class FedFrOptions:
    """FedFR's objective and training data. Fields that a task leaves out come from its `preset`.

    `public_classes` is the number of identities in the model's public shard. `alpha` weighs L_cos, L_con and L_BCE;
    `scale` and `margin` are CosFace's, `branch_*`, `exponent` and `balance` the branch's (s', m', t', lambda).
    `aggregate_public_head = false` starts every round from the first Phi again. A public image is trained on if its
    cosine with any own image exceeds `hard_negative_threshold` (-1: all); of these at most the `max_negatives` nearest
    (0: no bound). `weight` says which images count in the mean of models. `first_contrast` is what a phone pushes away
    from in its first round, when it has no previous model. `first_epochs` are the epochs of a phone's first round, two
    fewer in each one that follows, down to `local.epochs` (0: always `local.epochs`); after the share `lr_drop` of a
    round's epochs the rate falls to a tenth (0: never). `detach_branch` keeps the branch's gradient from the backbone.
    """

    preset: PresetName = "recommended"
    public_classes: int = 0
    alpha: tuple[float, float, float] = (1.0, 5.0, 10.0)
    scale: Positive = 30.0
    margin: Share = 0.4
    temperature: Positive = 0.5
    branch: Literal["binary", "cosface", "none"] = "binary"
    branch_scale: Positive = 30.0
    branch_margin: Share = 0.4
    exponent: Positive = 3.0
    balance: Share = 0.7
    detach_branch: bool = False
    aggregate_public_head: bool = True
    hard_negative_threshold: float = 0.4
    max_negatives: int = 256
    local_init: Literal["mean_feature", "random"] = "mean_feature"
    weight: Literal["local", "with_negatives"] = "local"
    first_contrast: Literal["skip", "global", "random"] = "skip"
    first_epochs: int = 0
    lr_drop: Share = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= weight < math.inf for weight in self.alpha):
            raise ConfigError(f"options.alpha is {list(self.alpha)}; the three weights must not be negative")
        check_limits(self, "options.")
        if not -1 <= self.hard_negative_threshold <= 1:
            raise ConfigError(
                f"options.hard_negative_threshold is {self.hard_negative_threshold}; it is a cosine (-1: every image)"
            )
        if min(self.public_classes, self.max_negatives, self.first_epochs) < 0:
            raise ConfigError("options.public_classes, max_negatives and first_epochs must not be negative")


# The paper and its code decay all that they train, proxies, Pi and Omega too (decision record 0094).
_LOCAL: Final = LocalSpec(lr=1e-3, epochs=4, batch_size=256, momentum=0.9, weight_decay=5e-4, private_weight_decay=5e-4)
PRESETS: Final[Mapping[str, Preset[FedFrOptions]]] = MappingProxyType(
    {
        "recommended": Preset(30, replace(_LOCAL, batch_size=32, private_weight_decay=None), FedFrOptions()),
        "paper": Preset(30, _LOCAL, FedFrOptions(preset="paper", max_negatives=0, first_contrast="global")),
        "released_code": Preset(
            20,
            _LOCAL,
            FedFrOptions(
                preset="released_code",
                aggregate_public_head=False,
                max_negatives=0,
                local_init="random",
                weight="with_negatives",
                first_contrast="random",
                first_epochs=10,
                lr_drop=0.75,
            ),
        ),
    }
)


def options_of(task: TaskSpec) -> FedFrOptions:
    """Return the task's options over those of its preset; raises ConfigError naming the wrong field."""
    options = _over_preset(task)
    if options.public_classes == 0:
        raise ConfigError(
            "options.public_classes is 0; fedfr holds a phone's identities apart from public ones, so give the number "
            "of identities in the public shard that was imported with the model"
        )
    # The first round tells the server where Phi starts: `public_classes` vectors of length 1.
    start_norm = math.sqrt(options.public_classes)
    if options.aggregate_public_head and task.privacy.dp.is_on and task.privacy.l2_clip <= start_norm:
        raise ConfigError(
            f"privacy.l2_clip is {task.privacy.l2_clip:g}, and the proxies of {options.public_classes} public "
            f"identities alone have norm {start_norm:.3g}; under differential privacy one clip is for both, so the "
            "first round would be clipped: raise it, or set options.aggregate_public_head to false"
        )
    return options


def _over_preset(task: TaskSpec) -> FedFrOptions:
    preset = from_mapping(FedFrOptions, task.options, where="options.").preset
    return from_mapping(FedFrOptions, {**to_mapping(PRESETS[preset].options), **task.options}, where="options.")


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums only, the change of Phi among them unless it starts anew each round.

    Phi has a clip of its own, twice the norm with which it starts: `privacy.l2_clip` is the model's. Under differential
    privacy, whose noise is as large as all that one device may send, one clip is for both.
    """
    options = options_of(task)
    clip = 0.0 if task.privacy.dp.is_on else 2 * math.sqrt(options.public_classes)
    head = (Lane("delta_public", options.public_classes * dim, clip),) if options.aggregate_public_head else ()
    return ContributionLayout((*update_lanes(part), *head))


# The device half.


@dataclass(frozen=True)
class TrainingSet:
    """D_l and D_HN of a round: crops, own ones first, and their classes in [W; Phi].

    `local_proxies` W (L, D) and `public_proxies` Phi (G, D) are those that the round starts with; `num_public` images
    were searched for negatives; `embeddings` (B, D) are f of the round's global model, at length 1.
    """

    crops: Crops = field(repr=False)
    classes: Indices = field(repr=False)
    embeddings: Vector = field(repr=False)
    local_proxies: Vector = field(repr=False)
    public_proxies: Vector = field(repr=False)
    num_own: int
    num_public: int

    @property
    def num_negatives(self) -> int:
        """Public images that are trained on."""
        return len(self.crops) - self.num_own

    @property
    def targets(self) -> Vector:
        """One-hot rows (B, L + G)."""
        return one_hot_rows(self.classes, len(self.local_proxies) + len(self.public_proxies))


def hard_negatives(own_ND: Vector, public_MD: Vector, threshold: float, most: int = 0) -> Indices:
    """Return the public images, in order, whose cosine with any own image exceeds `threshold`.

    Both are at length 1; of more than `most` (0: no bound) the nearest are kept. Source: FedFR, section "Hard Negative
    Sampling Strategy".
    """
    blocks = (public_MD[start : start + _SIMILARITY_BLOCK] for start in range(0, len(public_MD), _SIMILARITY_BLOCK))
    nearest_M = np.concatenate([np.zeros(0, np.float32), *((block @ own_ND.T).max(axis=1) for block in blocks)])
    kept = np.flatnonzero(nearest_M > threshold)
    if most and len(kept) > most:
        kept = np.sort(kept[np.argsort(-nearest_M[kept], kind="stable")[:most]])
    return kept.astype(np.int64)


def training_set(inp: DeviceInput, runtime: Runtime) -> TrainingSet:
    """Return a device's training set of a round: lines 14-16 of Algorithm 1."""
    options = options_of(inp.task)
    labels = own_labels(inp)
    public_crops, public_labels = public_faces(inp, method="fedfr")
    if int(public_labels.max()) + 1 != options.public_classes:
        raise ConfigError(
            f"the public shard has {int(public_labels.max()) + 1} identities and options.public_classes is "
            f"{options.public_classes}; submit the task with the shard's number"
        )
    own_ND, public_MD = runtime.embed(inp.theta, inp.crops), runtime.embed(inp.theta, public_crops)
    chosen = hard_negatives(own_ND, public_MD, options.hard_negative_threshold, options.max_negatives)
    w_LD = carry_over(inp.private.get(W), _first_local(inp, options, own_ND, labels))
    phi_GD = _public_proxies(inp, options, public_MD, public_labels)
    return TrainingSet(
        crops=np.concatenate([inp.crops, public_crops[chosen]]),
        classes=np.concatenate([labels, len(w_LD) + public_labels[chosen]]),
        embeddings=np.concatenate([own_ND, public_MD[chosen]]),
        local_proxies=w_LD,
        public_proxies=phi_GD,
        num_own=len(inp.crops),
        num_public=len(public_crops),
    )


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return one device's round: ClientTraining of Algorithm 1."""
    options = options_of(inp.task)
    data = training_set(inp, runtime)
    objective = _total_loss(inp, runtime, options, data)
    local = local_schedule(inp.task.local, options, _participations(inp))
    trained = runtime.train(inp.job(objective, crops=data.crops, local=local))
    return _output(inp, options, data, trained)


def local_schedule(local: LocalSpec, options: FedFrOptions, participations: int) -> LocalSpec:
    """Return the local training of a device that has taken part `participations` times before."""
    epochs = max(local.epochs, options.first_epochs - 2 * participations)
    return replace(local, epochs=epochs, lr_drop_epoch=math.floor(options.lr_drop * epochs))


def _participations(inp: DeviceInput) -> int:
    return int(inp.private.get(PARTICIPATIONS, np.zeros(1, np.float32))[0])


def _first_local(inp: DeviceInput, options: FedFrOptions, own_ND: Vector, labels: Indices) -> Vector:
    """Return W as it starts for identities that this device has not trained yet."""
    num_identities = int(labels.max()) + 1
    if options.local_init == "random":
        start: Vector = np.random.default_rng(inp.seed).normal(0, 0.01, (num_identities, inp.dim)).astype(np.float32)
        return start
    return class_means(own_ND, labels, num_identities)


def _public_proxies(inp: DeviceInput, options: FedFrOptions, public_MD: Vector, labels: Indices) -> Vector:
    """Return Phi as the round starts: the server's, else the public identities' mean features."""
    size = options.public_classes * inp.dim
    known = told(inp.reply, PHI, (size,)) if options.aggregate_public_head else inp.private.get(PHI_START)
    if known is None:
        return class_means(public_MD, labels, options.public_classes)
    if known.size != size:
        raise LayoutMismatchError("the public proxies that were kept are those of another model; fetch the task again")
    return known.reshape(options.public_classes, inp.dim).astype(np.float32)


def _total_loss(inp: DeviceInput, runtime: Runtime, options: FedFrOptions, data: TrainingSet) -> Objective:
    """Return L = alpha_1 L_cos + alpha_2 L_con + alpha_3 L_BCE (line 19) with W, Phi, Pi and Omega as they stand."""
    per_crop = {"target": data.targets}
    previous = _previous_theta(inp, options)
    if previous is not None and options.alpha[1] > 0:
        per_crop["global_features"] = features_both_ways(
            runtime, inp.theta, data.crops, inp.task.local, data.embeddings
        )
        per_crop["previous_features"] = features_both_ways(runtime, previous, data.crops, inp.task.local)
    return Objective(
        "fedfr",
        private={W: data.local_proxies, PHI: data.public_proxies, **_branch(inp, options, data)},
        per_crop=per_crop,
        constants={
            "alpha_cosface": options.alpha[0],
            "alpha_contrastive": options.alpha[1],
            "alpha_branch": options.alpha[2],
            "scale": options.scale,
            "margin": options.margin,
            "temperature": options.temperature,
            "branch_scale": options.branch_scale,
            "branch_margin": options.branch_margin,
            "exponent": options.exponent,
            "balance": options.balance,
            "detach_branch": float(options.detach_branch),
        },
    )


def _previous_theta(inp: DeviceInput, options: FedFrOptions) -> Vector | None:
    """Return this device's model at the end of its last round, or what stands for it in the first one."""
    previous = inp.private.get(PREVIOUS)
    if previous is not None and previous.shape == (inp.part.size,):
        return inp.part.scatter(inp.theta, previous)
    if options.first_contrast == "skip":
        return None
    if options.first_contrast == "global":
        return inp.theta
    # A device cannot draw a network, but its trained part in random order is as good as untrained.
    shuffled = np.random.default_rng([inp.seed, 1]).permutation(inp.part.gather(inp.theta))
    return inp.part.scatter(inp.theta, shuffled)


def features_both_ways(
    runtime: Runtime, theta: Vector, crops: Crops, local: LocalSpec, plain_BD: Vector | None = None
) -> Vector:
    """Return features of each crop and of its mirror image, (B, 2, D); twice the first where none is mirrored."""
    plain_BD = runtime.embed(theta, crops) if plain_BD is None else plain_BD
    mirrored_BD = runtime.embed(theta, np.ascontiguousarray(crops[:, :, ::-1])) if local.flip else plain_BD
    return np.stack([plain_BD, mirrored_BD], axis=1)


def _branch(inp: DeviceInput, options: FedFrOptions, data: TrainingSet) -> Arrays:
    """Return the branch's tensors: what the device kept, else Pi the identity, Omega a copy of W and biases 0.

    With a CosFace instead of binary losses (Table 2), Omega has a row for each public identity too.
    """
    if options.branch == "none":
        return {}
    start = {
        "pi_weight": np.eye(inp.dim, dtype=np.float32),
        "pi_bias": np.zeros(inp.dim, np.float32),
        "omega": data.local_proxies,
    }
    if options.branch == "binary":
        start["bias"] = np.zeros(len(data.local_proxies), np.float32)
    else:
        start["omega_public"] = data.public_proxies
    return {name: carry_over(inp.private.get(name), values) for name, values in start.items()}


def _output(inp: DeviceInput, options: FedFrOptions, data: TrainingSet, trained: Trained) -> DeviceOutput:
    """Return Theta and Phi as addends (line 27); W, Pi, Omega and the local model stay."""
    num_images = len(data.crops) if options.weight == "with_negatives" else data.num_own
    addends = dict(update_addends(inp, trained, num_images=num_images))
    private = {name: trained.private[name] for name in (W, *BRANCH) if name in trained.private}
    private[PREVIOUS] = trained.values
    private[PARTICIPATIONS] = np.array([_participations(inp) + 1], np.float32)
    if options.aggregate_public_head:
        # The server's Phi is zero until the first round has told it where Phi starts.
        known = data.public_proxies if PHI in inp.reply else np.zeros_like(data.public_proxies)
        addends["delta_public"] = addends["weight"] * (trained.private[PHI] - known).reshape(-1)
    else:
        private[PHI_START] = inp.private.get(PHI_START, data.public_proxies)
    made = output(contribution_layout(inp.task, inp.part, inp.dim), addends, private, trained)
    negatives = {"num_negatives": float(data.num_negatives), "num_public": float(data.num_public)}
    return replace(made, metrics={**made.metrics, **negatives})


# The server half.


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round; Phi joins it with the first total."""
    options_of(task)
    return averaging_start(task, part, theta)


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after lines 8 and 9: Theta and Phi take their mean steps."""
    after = apply_mean_update(task, part, state, total)
    if not options_of(task).aggregate_public_head:
        return after
    change = total.mean("delta_public")
    phi = change + state.arrays[PHI] if PHI in state.arrays else change
    return replace(after, arrays={**after.arrays, PHI: phi.astype(np.float32)})


def reply(state: ServerState, device: str) -> Arrays:
    """Return Phi, the same for every device (line 5); nothing before the first round."""
    return {PHI: state.arrays[PHI]} if PHI in state.arrays else {}


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: public faces, the same Phi for all, and with it one round after the other."""
    why = "Phi is trained with the model it goes with, and only the newest is kept; or aggregate_public_head = false"
    return Requirements(
        public_faces=True,
        objective="fedfr",
        shared_reply=(PHI,),
        why_synchronous=why if _over_preset(task).aggregate_public_head else "",
    )


FEDFR = Method(
    name="fedfr",
    source="Liu et al.: FedFR (AAAI 2022)",
    options=FedFrOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=reply,
    requirements=requirements,
    properties=frozenset({Property.SEVERAL_PEOPLE}),
    per_identity=(W,),
)
