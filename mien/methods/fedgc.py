"""FedGC: a classifier of its own on every client; gradients between clients' classes are corrected afterwards.

Source: Niu, Deng, "Federated Learning for Face Recognition with Gradient Correction" (AAAI 2022), Algorithm 1. A client
trains theta and its class embeddings W_k with a softmax over its own identities; theta is averaged (FedPE). What no
client can do alone, telling its identities from other clients', the correction does (`options.correction`):

- "none" is FedPE: W_k never leaves the client. With `fixed` it stays as it was drawn (FedPE+Fixed).
- "softmax" (FedGC, eq 5) or "cosine" (FedCos), with `privacy.reveals = ["class_embeddings"]`: clients show W_k, from
  which faces can be told; the server corrects all of them together and answers each client with its own.
- the same without `reveals`, the private form: W_k stays. After its local round the client corrects it against public
  people, each of them taken for another client, and against the second moment of the cohort's class embeddings
  (`options.moment`, off by default).
- the same with `privacy.reveals = ["class_moment"]`: W_k stays, and the client corrects it against all other clients'
  classes by their summed moments (`moment_correction`), which needs no public people. `options.private_form` says which
  of the two.

Where the paper is silent: a correction moves the embeddings of the clients of the round; those of absent clients stay
where they are and take part as anchors and as classes. Legend: L own identities, C classes of all clients, D embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods import averaging, everybody, moment_correction, moments
from mien.methods.averaging import apply_mean_update, output, update_addends, update_lanes
from mien.methods.base import (
    IDENTITIES,
    DeviceInput,
    DeviceOutput,
    Method,
    Property,
    Requirements,
    Runtime,
    ServerState,
    objective_name,
)
from mien.methods.check_reply import told
from mien.methods.proxies import (
    CLASSES,
    carry_over,
    check_published,
    class_means,
    head_objective,
    own_labels,
    public_faces,
    random_classes,
    reveals_class_embeddings,
)
from mien.methods.spreadout import (
    Bools,
    Matrix,
    MomentSpec,
    cosine_regulariser,
    moment_regulariser,
    normalise,
    softmax_regulariser,
)
from mien.specs import TaskSpec, from_mapping

W: Final = CLASSES
SharedIdentity = tuple[tuple[str, int], ...]
"""Identity that several clients hold: the device and its number there, for each of them."""


@dataclass(frozen=True)
class HeadOptions:
    """The clients' classifier: plain inner products, or cosines times `scale` s with margin m on the own class."""

    kind: Literal["softmax", "cosface", "arcface"] = "softmax"
    scale: float = 64.0
    margin: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.scale < math.inf and 0 <= self.margin < math.pi / 2):
            raise ConfigError("options.head needs a positive scale and a margin in [0, pi / 2)")

    @property
    def is_normalised(self) -> bool:
        """True if class embeddings have length 1."""
        return self.kind != "softmax"


@dataclass(frozen=True)
class CorrectionOptions:
    """W <- W - `strength` lambda x eta x gradient; eta is `local.lr`.

    `scale` s multiplies the inner products, `margin` m lowers an anchor's own: s = 1 and m = 0 are eq 5 as printed; a
    head's own are the "minor modification" that the paper allows for. Pairs with a cosine above `duplicate_cosine` are
    not corrected: the same person whom two clients hold without anybody having said so.
    """

    kind: Literal["softmax", "cosine", "none"] = "softmax"
    strength: float = 20.0
    scale: float = 1.0
    margin: float = 0.0
    duplicate_cosine: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.strength < math.inf and 0 < self.scale < math.inf and 0 <= self.margin < math.inf):
            raise ConfigError("options.correction needs strength >= 0, scale > 0 and margin >= 0")
        if not 0 < self.duplicate_cosine <= 1:
            raise ConfigError("options.correction.duplicate_cosine is a cosine in (0, 1]; 1 corrects every pair")


@dataclass(frozen=True)
class FedGcOptions:
    """`identities` is the most that one device holds; `start` where W begins; `fixed` leaves it there.

    `shared` lists identities that several devices hold. In the exact form their embeddings are averaged, and corrected
    only against devices that do not hold them. In the private form each device keeps its own of them, leaves it out of
    the second moment, by which it would be pushed from itself, and does not move it by that.

    `private_form` is whom a device corrects against that shows nothing: the bundle's "public" people, or "everybody"
    else by summed moments. Unset it is everybody where the task agreed to sums of class moments, names a correction and
    takes no steps of `moment`, and public people else.
    """

    identities: int = 1
    start: Literal["random", "mean_feature"] = "random"
    fixed: bool = False
    head: HeadOptions = field(default_factory=HeadOptions)
    correction: CorrectionOptions = field(default_factory=CorrectionOptions)
    moment: MomentSpec = field(default_factory=MomentSpec)
    private_form: Literal["public", "everybody"] | None = None
    shared: tuple[SharedIdentity, ...] = ()

    def __post_init__(self) -> None:
        if self.identities < 1:
            raise ConfigError(f"options.identities is {self.identities}; a device holds at least one")
        if self.fixed and (self.correction.kind != "none" or self.moment.is_on):
            raise ConfigError(
                'options.fixed leaves class embeddings as they were drawn; set options.correction.kind to "none" and '
                "options.moment.every to 0"
            )
        members = [member for identity in self.shared for member in identity]
        if len(set(members)) != len(members) or any(not 0 <= index < self.identities for _, index in members):
            raise ConfigError(
                "options.shared names an identity of a device twice, or one beyond options.identities; list each once"
            )


def options_of(task: TaskSpec) -> FedGcOptions:
    """Return the task's options, its private form named; raises ConfigError naming the wrong field."""
    options = from_mapping(FedGcOptions, task.options, where="options.")
    if options.private_form is not None:
        return options
    is_agreed = moments.REVEALS in task.privacy.reveals and not options.moment.is_on
    is_everybody = is_agreed and options.correction.kind != "none"
    return replace(options, private_form="everybody" if is_everybody else "public")


def _is_everybody(task: TaskSpec, options: FedGcOptions) -> bool:
    return options.private_form == "everybody" and not reveals_class_embeddings(task)


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums, and W_k in clear only where the task opted in.

    Raises ConfigError for a task that shows more than its method uses, or moments that it does not name.
    """
    options = options_of(task)
    if _is_everybody(task, options):
        _check_everybody(task, options)
        return ContributionLayout((*update_lanes(part), *moment_correction.lanes(task, dim)))
    if not reveals_class_embeddings(task):
        return ContributionLayout((*update_lanes(part), *moments.lanes(task, options.moment, dim)))
    if options.correction.kind == "none" or options.moment.is_on:
        raise ConfigError(
            "privacy.reveals has class_embeddings, which FedPE and the private form do not need: remove it, or name a "
            "correction and set options.moment.every to 0"
        )
    check_published(task)
    return ContributionLayout(update_lanes(part), (Lane(W, options.identities * dim),))


def _check_everybody(task: TaskSpec, options: FedGcOptions) -> None:
    """Raise ConfigError for a task whose sums would be seen by somebody whom it does not name, or not be used."""
    everybody.check(task)
    if options.correction.kind == "none" or options.moment.is_on:
        raise ConfigError(
            'options.private_form "everybody" corrects by both moments of everybody\'s classes: name a correction '
            "(options.correction.kind) and leave options.moment out"
        )
    if options.correction.duplicate_cosine < 1:
        raise ConfigError(
            "options.correction.duplicate_cosine leaves pairs of class embeddings out, and "
            'options.private_form "everybody" knows their sums alone: set it to 1'
        )


# The device half.


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return one client's round: lines 4 to 8, and in the private form its own correction."""
    options, label_N = options_of(inp.task), own_labels(inp)
    w_LD = _class_embeddings(inp, runtime, options, label_N)
    if _is_everybody(inp.task, options):
        w_LD = _corrected_by_moments(inp, options, w_LD)
    local = replace(inp.task.local, private_lr=0.0) if options.fixed else inp.task.local
    head = options.head
    objective = head_objective(head.kind, w_LD, label_N, scale=head.scale, margin=head.margin)
    trained = runtime.train(inp.job(objective, local=local))
    w_LD = w_LD if options.fixed else trained.private[W]
    addends, kept = update_addends(inp, trained), dict[str, Vector]()
    if reveals_class_embeddings(inp.task):
        shown_LD = np.zeros((options.identities, inp.dim), np.float32)
        shown_LD[: len(w_LD)] = w_LD
        addends = {**addends, W: shown_LD.reshape(-1)}
    elif _is_everybody(inp.task, options):
        # What is summed is W_k as it was trained, which is also what the published form's server corrects.
        summed_LD = w_LD[_alone(inp, options, len(w_LD))]
        addends = {**addends, **moment_correction.addends(summed_LD, options.identities)}
        kept = dict(moment_correction.kept(inp))
    else:
        lane, moment = moments.addends(inp, options.moment, w_LD[_alone(inp, options, len(w_LD))])
        w_LD = _corrected_by_client(inp, runtime, options, w_LD)
        addends, kept = {**addends, **lane}, dict(moment)
    made = output(contribution_layout(inp.task, inp.part, inp.dim), addends, {**kept, W: w_LD}, trained)
    return replace(made, metrics={**made.metrics, IDENTITIES: float(len(w_LD))})


def _class_embeddings(inp: DeviceInput, runtime: Runtime, options: FedGcOptions, label_N: NDArray[np.int64]) -> Vector:
    """Return W_k (L, D): as the server answered, as it was kept, or its start for identities that are new."""
    num_identities = int(label_N.max()) + 1
    if num_identities > options.identities:
        raise ConfigError(
            f"this device holds {num_identities} identities and options.identities is {options.identities}; the task "
            "is for devices with fewer"
        )
    answered = told(inp.reply, W, (options.identities * inp.dim,))
    known = inp.private.get(W) if answered is None else answered
    if known is not None:
        known = known.reshape(-1, inp.dim)
        known = known[np.any(known != 0, axis=1)]  # rows beyond a device's identities are zero
    if known is not None and len(known) >= num_identities:
        return np.asarray(known[:num_identities], np.float32)
    if options.start == "mean_feature":
        start_LD = class_means(runtime.embed(inp.theta, inp.crops), label_N, num_identities)
    else:
        start_LD = random_classes(num_identities, inp.dim, inp.seed, at_length_1=options.head.is_normalised)
    return carry_over(known, start_LD)


def _corrected_by_client(inp: DeviceInput, runtime: Runtime, options: FedGcOptions, w_LD: Vector) -> Vector:
    """Return W_k after the client's own correction: public people stand in for other clients, each for one.

    Only the client's rows move. The second moment's step follows where it is on.
    """
    if options.correction.kind != "none":
        crops, label_M = public_faces(inp, method="fedgc")
        public_CD = class_means(runtime.embed(inp.theta, crops), label_M, int(label_M.max()) + 1)
        if not options.head.is_normalised:
            # Inner products: a public person's vector is as long as an own one is on average.
            public_CD = public_CD * np.float32(np.linalg.norm(w_LD, axis=1).mean())
        every_CD = np.concatenate([w_LD, public_CD]).astype(np.float64)
        client_C = np.concatenate([np.zeros(len(w_LD), np.int64), 1 + np.arange(len(public_CD))])
        moves_C = client_C == 0
        exclusive_CC = client_C[:, None] != client_C[None, :]
        w_LD = corrected(every_CD, exclusive_CC, moves_C, options, inp.task.local.lr)[: len(w_LD)].astype(np.float32)
    if not options.moment.is_on:
        return w_LD
    moved_LD = moments.step(inp, options.moment, w_LD)
    if not options.head.is_normalised:
        moved_LD = (moved_LD * np.linalg.norm(w_LD, axis=1, keepdims=True)).astype(np.float32)
    stepped_LD: Vector = np.where(_alone(inp, options, len(w_LD))[:, None], moved_LD, w_LD)
    return stepped_LD


def _corrected_by_moments(inp: DeviceInput, options: FedGcOptions, w_LD: Vector) -> Vector:
    """Return W_k after the step against all others' classes by their moments; rows that were never trained stay."""
    kept = inp.private.get(W)
    kept_LD = np.zeros((0, inp.dim), np.float32) if kept is None else kept.reshape(-1, inp.dim)
    alone_L = _alone(inp, options, max(len(kept_LD), len(w_LD)))
    others = moment_correction.opened_to(inp, kept_LD[alone_L[: len(kept_LD)]], options.identities)
    if others is None:
        return w_LD
    every_LD = w_LD.astype(np.float64)
    # Inner products: another's vector is as long as an own one is on average.
    length = 1.0 if options.head.is_normalised else float(np.linalg.norm(every_LD, axis=1).mean())
    mean_D, covariance_DD = length * others.mean, length**2 * others.covariance
    if options.correction.kind == "cosine":
        gradient_LD = np.broadcast_to(others.others * mean_D, every_LD.shape)
    else:
        scale, margin = options.correction.scale, options.correction.margin
        _, gradient_LD = moment_regulariser(every_LD, others.others, mean_D, covariance_DD, scale=scale, margin=margin)
    moves_L = alone_L[: len(w_LD)] & (np.arange(len(w_LD)) < len(kept_LD))
    return _stepped(every_LD, gradient_LD, moves_L, options, inp.task.local.lr).astype(np.float32)


def _alone(inp: DeviceInput, options: FedGcOptions, num_identities: int) -> NDArray[np.bool_]:
    """Return which of this device's identities (L,) no other device holds, as far as the task says."""
    elsewhere = {index for identity in options.shared for device, index in identity if device == inp.device}
    return np.array([index not in elsewhere for index in range(num_identities)])


# Both halves.


def corrected(w_CD: Matrix, exclusive_CC: Bools, moves_C: Bools, options: FedGcOptions, lr: float) -> Matrix:
    """Return all class embeddings (C, D) after line 14, W - lambda eta grad Reg(W); only the rows `moves_C` move.

    `exclusive_CC` [a, c] says that anchor a and class c belong to different clients.
    """
    correction = options.correction
    if correction.duplicate_cosine < 1:
        unit_CD = normalise(w_CD)
        exclusive_CC = exclusive_CC & (unit_CD @ unit_CD.T <= correction.duplicate_cosine)
    if correction.kind == "cosine":
        _, gradient_CD = cosine_regulariser(w_CD, w_CD, exclusive_CC)
    else:
        scale, margin = correction.scale, correction.margin
        _, gradient_CD = softmax_regulariser(w_CD, w_CD, exclusive_CC, scale=scale, margin=margin)
    return _stepped(w_CD, gradient_CD, moves_C, options, lr)


def _stepped(w_CD: Matrix, gradient_CD: Matrix, moves_C: Bools, options: FedGcOptions, lr: float) -> Matrix:
    """Return class embeddings (C, D) after a step of the correction; only the rows `moves_C` move."""
    moved_CD = w_CD - options.correction.strength * lr * gradient_CD
    if options.head.is_normalised:
        moved_CD = normalise(moved_CD)
    after_CD: Matrix = np.where(moves_C[:, None], moved_CD, w_CD)
    return after_CD


# The server half.


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round."""
    options = options_of(task)
    if _is_everybody(task, options):
        begun = averaging.server_start(task, part, theta)
        return replace(begun, arrays={**begun.arrays, **moments.counts(number=0, devices=0)})
    return moments.server_start(options.moment, task, part, theta)


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state after lines 10 to 14: theta takes its step; where W is shown, it is corrected."""
    options = options_of(task)
    if _is_everybody(task, options):
        after = apply_mean_update(task, part, state, total)
        return moment_correction.with_sums(task, state, after, total)
    if not reveals_class_embeddings(task):
        return moments.server_step(options.moment, task, part, state, total)
    everyone = {**state.revealed, **revealed}
    after = apply_mean_update(task, part, state, total)
    return replace(after, revealed=_corrected_by_server(everyone, set(revealed), options, task.local.lr))


def reply(state: ServerState, device: str) -> Arrays:
    """Return what a device is told: opened sums, and its own class embeddings where it showed them."""
    return {**moments.reply(state, device), **moments.told_to_all(state, moment_correction.SHARED)}


def _exclusive(members: Sequence[SharedIdentity]) -> Bools:
    """Return (C, C): no client holds both identities."""
    place = {device: row for row, device in enumerate(sorted({device for m in members for device, _ in m}))}
    holds_CK = np.zeros((len(members), len(place)))
    for row, identity in enumerate(members):
        holds_CK[row, [place[device] for device, _ in identity]] = 1.0
    exclusive_CC: Bools = (holds_CK @ holds_CK.T) == 0
    return exclusive_CC


def _corrected_by_server(
    shown: Mapping[str, Arrays], present: set[str], options: FedGcOptions, lr: float
) -> dict[str, Arrays]:
    """Return each client's W_k after the server's step; a device's unused rows stay zero."""
    rows = {device: arrays[W].reshape(options.identities, -1).copy() for device, arrays in sorted(shown.items())}
    members = _identities(rows, options)
    if members:
        moves_C = np.array([any(device in present for device, _ in identity) for identity in members])
        start_CD = _means(rows, members, present)
        if options.head.is_normalised:
            start_CD = normalise(start_CD)
        w_CD = corrected(start_CD, _exclusive(members), moves_C, options, lr)
        for identity, w in zip(members, w_CD, strict=True):
            for device, index in identity:
                rows[device][index] = w
    return {device: {W: w_LD.reshape(-1).astype(np.float32)} for device, w_LD in rows.items()}


def _identities(rows: Mapping[str, Vector], options: FedGcOptions) -> list[SharedIdentity]:
    """Return every identity that clients showed, once: the shared ones by all who hold them, then the others."""
    held = {
        (device, index) for device, w_LD in rows.items() for index in np.flatnonzero(np.any(w_LD != 0, axis=1)).tolist()
    }
    together: list[SharedIdentity] = [tuple(sorted(set(identity) & held)) for identity in options.shared]
    alone = sorted(held - {member for identity in together for member in identity})
    return [identity for identity in (*together, *((member,) for member in alone)) if identity]


def _means(rows: Mapping[str, Vector], members: Sequence[SharedIdentity], present: set[str]) -> Matrix:
    """Return each identity's embedding (C, D): the mean over its clients of this round, or what it was without any."""
    means = []
    for identity in members:
        fresh = [member for member in identity if member[0] in present] or identity
        means.append(np.mean([rows[device][index] for device, index in fresh], axis=0, dtype=np.float64))
    return np.stack(means)


_ONE_IDENTITY: Final = (
    "options.identities is 1, and a classifier over one class has no gradient: a device of one person trains nothing. "
    "Ask devices of several people, or take a method for one (fedface)"
)


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: public faces where clients correct their class embeddings by themselves."""
    options = options_of(task)
    is_everybody = _is_everybody(task, options)
    is_private = not is_everybody and not reveals_class_embeddings(task)
    return Requirements(
        public_faces=options.correction.kind != "none" and is_private,
        objective=objective_name(options.head.kind, options.head.margin),
        caution=_ONE_IDENTITY if options.identities == 1 else "",
        shared_reply=moment_correction.SHARED if is_everybody else moments.SHARED,
        why_synchronous=everybody.WHY_SYNCHRONOUS if is_everybody else moments.why_synchronous(task, options.moment),
    )


FEDGC = Method(
    name="fedgc",
    source="Niu, Deng: Federated Learning for Face Recognition with Gradient Correction (AAAI 2022)",
    options=FedGcOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=reply,
    requirements=requirements,
    properties=frozenset({Property.SUM_ONLY, Property.REVEALS, Property.SEVERAL_PEOPLE}),
    per_identity=(W,),
)
