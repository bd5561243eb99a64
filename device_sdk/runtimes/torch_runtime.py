"""The reference runtime: PyTorch, the arithmetic that every other runtime is compared with.

Suffixes of tensors: B batch, K classes, D embedding.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.runtimes.feature_cache import DEFAULT_CAPACITY_BYTES, FeatureCache
from device_sdk.runtimes.objectives import LossInput, Tensors, find_loss, is_mean_over_images
from device_sdk.runtimes.schedule import (
    Batch,
    adds_up_over_pieces,
    cannot_add_up,
    check_offset,
    check_trainable,
    take_steps,
)
from mien.backbones import Backbone, build_backbone, layout_of, load_tensors, load_theta
from mien.contribution import Arrays
from mien.errors import ConfigError, LayoutMismatchError, MissingDependencyError, NonFiniteError
from mien.layout import ParameterLayout, ParameterPart, Vector
from mien.methods.base import Crops, Embeddings, Objective, Trained, TrainingJob, never_stop
from mien.objectives.heads import l2_normalise
from mien.shell.doing import COMPUTING, counting
from mien.specs import LocalSpec, ModelSpec

# Crops of one forward pass. Larger passes gain less than they lose on fresh memory pages: SFace on the project's 2-core
# machine takes 16 ms of CPU a crop at 4, 28 ms at 8 and 34 ms at 32, of which 20 in the kernel.
INFERENCE_BATCH: Final = 4
CUDA_INFERENCE_BATCH: Final = 256
# Features of one pass through the tail without gradients, and what a device's features may take to be held together.
TAIL_BATCH: Final = 32
HELD_BYTES: Final = 256 * 2**20
DeviceName = Literal["cpu", "cuda"]
Precision = Literal["float32", "bfloat16"]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


class TorchRuntime:
    """Embeds and trains with one backbone, in eval mode unless a task says otherwise (`local.batch_norm`).

    Crops' features before the first trained stage are kept in memory (`cache_bytes`), so that rounds after the first
    cost only the tail. `micro_batch` above 0 bounds the images in memory during a step: their gradients are added up,
    and the step is that of the whole batch. `losses_on` above 0 bounds the crops, evenly spaced, that the losses before
    and after training are of: those of all may take longer than a few steps of a small network. Equal inputs and seeds
    give equal results on one machine's CPU with one thread; `device` "cuda" is for simulations.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layout: ParameterLayout,
        *,
        threads: int = 1,
        cache_bytes: int = DEFAULT_CAPACITY_BYTES,
        backbone: Backbone | None = None,
        cache: FeatureCache | None = None,
        device: DeviceName = "cpu",
        micro_batch: int = 0,
        precision: Precision = "float32",
        losses_on: int = 0,
    ) -> None:
        """Build the backbone that `spec` names, or take `backbone`; `cache` stands in for one of `cache_bytes`.

        With `precision` "bfloat16" a GPU multiplies in bfloat16 and adds in float32; weights, losses and updates stay
        float32. Raises LayoutMismatchError where its layout is not the model's, ConfigError for an unknown name, or for
        bfloat16 on a CPU,
        MissingDependencyError for a device that this machine lacks.
        """
        if device == "cuda" and not torch.cuda.is_available():
            raise MissingDependencyError("this machine or this torch has no CUDA; use device 'cpu'")
        if precision == "bfloat16" and device == "cpu":
            raise ConfigError(
                "precision bfloat16 is for GPUs: on a CPU it gains nothing that was measured; use float32"
            )
        if micro_batch < 0:
            raise ConfigError(f"micro_batch is {micro_batch}; it must not be negative (0: whole batches)")
        if losses_on < 0:
            raise ConfigError(f"losses_on is {losses_on}; it must not be negative (0: all crops)")
        self._backbone = build_backbone(spec.backbone, spec.input) if backbone is None else backbone.eval()
        self._layout = layout_of(self._backbone)
        if self._layout.sha256 != layout.sha256:
            raise LayoutMismatchError(
                f"model has layout {layout.sha256[:12]}, backbone {spec.backbone} of this program has "
                f"{self._layout.sha256[:12]}; upgrade the older of the two"
            )
        self._device = torch.device(device)
        self._backbone.to(self._device).requires_grad_(False)
        self._tensors = dict(self._backbone.named_parameters()) | dict(self._backbone.named_buffers())
        self._parameters = frozenset(name for name, _ in self._backbone.named_parameters())
        self._splits: dict[tuple[str, ...], int] = {}
        self._micro_batch = micro_batch
        self.losses_on = losses_on
        self._threads = threads
        self.precision: Precision = precision
        self._cache = FeatureCache(cache_bytes) if cache is None else cache
        self._split = self._split_for(layout.part(spec.trainable or ("*",)).names)
        self._loaded: Vector | None = None
        self._changed: frozenset[str] = frozenset()
        self._trunk_ids: dict[int, bytes] = {}

    @property
    def device(self) -> str:
        """Device of the arithmetic: "cpu" or "cuda"."""
        return self._device.type

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return L2-normalised embeddings (N, dim) of aligned crops (N, H, W, 3) uint8 RGB.

        Raises NonFiniteError for an embedding that is not finite, ConfigError for crops of another size.
        """
        with self._running(theta):
            return _unit_embeddings(self._images(theta, crops).embed_all())

    def features(self, theta: Vector, crops: Crops) -> NDArray[np.float32]:
        """Return embeddings (N, dim) of aligned crops as the backbone gives them, not normalised (see `embed`)."""
        with self._running(theta):
            return _finite(self._images(theta, crops).embed_all())

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return SGD's result on the job's part and private tensors, on its crops, starting from its theta.

        The losses before and after are those of all crops (or of `losses_on`), not mirrored. Raises NonFiniteError when
        the loss or a parameter stops being finite, LayoutMismatchError for a part of another model, LateError when
        `should_stop`, which is asked before every step, says so.
        """
        part = job.part
        self._check_trainable(job)
        self._split = self._split_for(part.names)
        with self._running(job.theta), self._requiring_grad(part):
            self._changed = frozenset(part.names)
            training = _Training(self._tensors, job, self._micro_batch)
            images = self._images(job.theta, job.crops)
            judged = self._judged(len(images))
            loss_before = training.evaluate(images, judged)
            with self._learning_statistics(part, job.local):
                num_steps = take_steps(
                    job.local, len(images), job.seed, lambda batch: training.step(images, batch), should_stop
                )
            loss_after = training.evaluate(images, judged)
            values = training.part_values()
        private, velocity = training.private_arrays(), training.velocity_arrays()
        return Trained(part, job.theta, values, private, loss_before, loss_after, num_steps, velocity)

    @contextlib.contextmanager
    def loaded(self, theta: Vector, part: ParameterPart) -> Iterator[Trunk]:
        """Hold the model's parameters in the backbone, and give the trunk that stays constant while `part` is trained.

        For programs that train many devices' tails in their own way: the trunk's features are this runtime's.
        """
        self._split = self._split_for(part.names)
        with self._running(theta):
            yield self._trunk(theta)

    def can_divide(self, objective: Objective, local: LocalSpec) -> bool:
        """Return whether a batch's images can be worked out one after another (`in_pieces`), with the same step."""
        return local.batch_norm == "eval" and is_mean_over_images(objective.name) and adds_up_over_pieces(objective)

    @contextlib.contextmanager
    def in_pieces(self, num_images: int) -> Iterator[None]:
        """Hold at most so many images of a batch in memory at once, while the block runs."""
        before = self._micro_batch
        self._micro_batch = min(before, num_images) if before else num_images
        try:
            yield
        finally:
            self._micro_batch = before

    def _judged(self, num_crops: int) -> Indices:
        """Return which crops the losses before and after are of."""
        if not 0 < self.losses_on < num_crops:
            return np.arange(num_crops)
        return np.linspace(0, num_crops - 1, self.losses_on).astype(np.int64)

    def _check_trainable(self, job: TrainingJob) -> None:
        """Raise for what cannot be trained, before anything is loaded."""
        check_trainable(self._layout, job.part, len(job.crops))
        crops, objective, local = job.crops, job.objective, job.local
        if local.batch_norm == "train" and (len(crops) == 1 or local.batch_size == 1):
            raise ConfigError("local.batch_norm is 'train' and a batch is one image, which has no statistics; use eval")
        if self._micro_batch and local.batch_norm == "train":
            raise ConfigError("local.batch_norm 'train' needs whole batches in memory; set micro_batch to 0")
        if self._micro_batch and not is_mean_over_images(objective.name):
            raise ConfigError(
                f"objective {objective.name!r} compares a batch's images, so they must be in memory together; set "
                "micro_batch to 0"
            )
        if self._micro_batch and not adds_up_over_pieces(objective):
            batch = min(local.batch_size or len(crops), len(crops))
            if batch > self._micro_batch:
                raise cannot_add_up(objective)

    @contextlib.contextmanager
    def _learning_statistics(self, part: ParameterPart, local: LocalSpec) -> Iterator[None]:
        """Put BatchNorm whose statistics are in the trained part into training mode, where the task says so."""
        if local.batch_norm == "eval":
            yield
            return
        names = set(part.names)
        learning = {name: module for name, module in self._backbone.named_modules() if f"{name}.running_mean" in names}
        if not learning:
            raise ConfigError(
                "local.batch_norm is 'train' and no BatchNorm statistics are in the trained part; name them in "
                "trainable, or use eval"
            )
        # A module learns both statistics, also where only one of them is in the part and is kept.
        self._changed |= {f"{name}.{what}" for name in learning for what in ("running_mean", "running_var")}
        for module in learning.values():
            module.train()
        try:
            yield
        finally:
            self._backbone.eval()

    @contextlib.contextmanager
    def _running(self, theta: Vector) -> Iterator[None]:
        """Load the parameters and hold torch to this runtime's threads, which are otherwise the process's."""
        self._load(theta)
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with torch.autocast("cuda", torch.bfloat16) if self.precision == "bfloat16" else contextlib.nullcontext():
                yield
        finally:
            torch.set_num_threads(before)

    def _load(self, theta: Vector) -> None:
        """Load parameters; of the very vector that is loaded, if nobody can write to it, only what training changed."""
        if theta is self._loaded and not theta.flags.writeable:
            load_tensors(self._tensors, self._layout, theta, self._changed)
        else:
            load_theta(self._backbone, self._layout, theta)
            self._loaded = theta
            self._trunk_ids.clear()
        self._changed = frozenset()

    @contextlib.contextmanager
    def _requiring_grad(self, part: ParameterPart) -> Iterator[None]:
        trained = [self._tensors[name] for name in part.names if name in self._parameters]
        for tensor in trained:
            tensor.requires_grad_(True)
        try:
            yield
        finally:
            for tensor in trained:
                tensor.requires_grad_(False)

    def _split_for(self, names: tuple[str, ...]) -> int:
        """Return the first stage that holds one of these tensors, looked up once for each part."""
        if names not in self._splits:
            self._splits[names] = self._backbone.split_for(names)
        return self._splits[names]

    def _trunk_id(self, theta: Vector) -> bytes:
        """Return a digest of the split and of every parameter before it: equal ids mean equal features."""
        if self._split not in self._trunk_ids:
            self._trunk_ids[self._split] = self._digest_of_trunk(theta)
        return self._trunk_ids[self._split]

    def _digest_of_trunk(self, theta: Vector) -> bytes:
        frozen = set(self._backbone.stage_names[: self._split])
        digest = hashlib.sha256(str(self._split).encode())
        for entry in self._layout.entries:
            if entry.name.split(".", 1)[0] in frozen:
                start = self._layout.offsets[entry.name]
                digest.update(theta[start : start + entry.size].tobytes())
        return digest.digest()

    def _images(self, theta: Vector, crops: Crops) -> _Images:
        return _Images(self._trunk(theta), crops)

    def _trunk(self, theta: Vector) -> Trunk:
        return Trunk(self._backbone, self._split, self._trunk_id(theta), self._cache)


@dataclass(frozen=True)
class Trunk:
    """The stages before `split`, which no training step changes, with their remembered features."""

    backbone: Backbone
    split: int
    trunk_id: bytes
    cache: FeatureCache = field(repr=False)

    @property
    def device(self) -> torch.device:
        """Device of the backbone's tensors."""
        return next(self.backbone.parameters()).device

    @property
    def inference_batch(self) -> int:
        """Crops of one forward pass without gradients."""
        return CUDA_INFERENCE_BATCH if self.device.type == "cuda" else INFERENCE_BATCH

    def features(self, crops: Crops, flipped: Flags | None = None) -> Tensor:
        """Return the batch that enters stage `split`: crops, mirrored where `flipped` says so."""
        if flipped is None:
            flipped = np.zeros(len(crops), np.bool_)
        if self.split == 0:  # nothing to remember: the whole net is trained
            return self._compute(np.where(flipped[:, None, None, None], crops[:, :, ::-1], crops))
        return torch.stack(self.cache.features(self.trunk_id, crops, flipped, self._compute)).to(self.device)

    def tail(self, features: Tensor) -> Tensor:
        """Return the embeddings (B, D) of a batch of features, in float32 whatever they were multiplied in."""
        return self.backbone.tail(features, self.split).float()

    @torch.no_grad()
    def _compute(self, crops: Crops) -> Tensor:
        size = self.inference_batch
        passes = [crops[start : start + size] for start in range(0, len(crops), size)]
        inputs = (torch.from_numpy(self.backbone.input_spec.network_input(each)).to(self.device) for each in passes)
        return torch.cat([self.backbone.trunk(x_BCHW, self.split) for x_BCHW in inputs])


class _Images:
    """One device's crops as the tail sees them: their features are looked up once where they fit into memory."""

    def __init__(self, trunk: Trunk, crops: Crops) -> None:
        self._trunk = trunk
        self._crops = crops
        self._held = self._looked_up()

    def __len__(self) -> int:
        return len(self._crops)

    def embeddings(self, batch: Indices, flipped: Flags) -> Tensor:
        """Return the embeddings (B, D) of some crops, mirrored where `flipped` says so."""
        if self._held is not None and not flipped.any():
            return self._trunk.tail(self._held[torch.from_numpy(batch).to(self._held.device)])
        return self._trunk.tail(self._trunk.features(self._crops[batch], flipped))

    @torch.no_grad()
    def embed_all(self) -> Tensor:
        """Return the embeddings (N, D) of all crops as they are."""
        if self._held is not None:
            return torch.cat([self._trunk.tail(features) for features in torch.split(self._held, TAIL_BATCH)])
        size = self._trunk.inference_batch
        pieces = [self._crops[start : start + size] for start in range(0, len(self._crops), size)]
        embedded = [self._trunk.tail(self._trunk.features(piece)) for piece in counting(COMPUTING, pieces)]
        return torch.cat(embedded) if embedded else torch.empty(0, self._trunk.backbone.input_spec.dim)

    def _looked_up(self) -> Tensor | None:
        """Return the features of all crops (N, ...), or None without a trunk, without crops, or where they are many."""
        if self._trunk.split == 0 or len(self._crops) == 0:
            return None
        if len(self._crops) <= TAIL_BATCH:  # the very array, whose digests may be known
            return self._trunk.features(self._crops)
        starts = range(0, len(self._crops), TAIL_BATCH)
        first = self._trunk.features(self._crops[:TAIL_BATCH])
        if first.numel() * first.element_size() // len(first) * len(self._crops) > HELD_BYTES:
            return None
        rest = [
            self._trunk.features(self._crops[start : start + TAIL_BATCH]) for start in counting(COMPUTING, starts[1:])
        ]
        return torch.cat([first, *rest])


class _Training:
    """One device's local training: the part's parameters and the private tensors under one optimiser."""

    def __init__(self, tensors: Tensors, job: TrainingJob, micro_batch: int) -> None:
        part, objective, local = job.part, job.objective, job.local
        self._loss = find_loss(objective.name)
        self._part = part
        self._objective = objective
        self._local = local
        self._micro_batch = micro_batch
        self._tensors = tensors
        self._device = tensors[part.names[0]].device
        self._private = _as_tensors(objective.private, self._device)
        for tensor in self._private.values():
            tensor.requires_grad_()
        self._fixed = _as_tensors(objective.fixed, self._device)
        self._per_crop = _as_tensors(objective.per_crop, self._device)
        self._groups = self._optimiser(), Sgd.of_private(list(self._private.values()), local)
        for name, velocity in zip(self._private, self._groups[1].velocities, strict=True):
            if name in objective.velocity:
                velocity.copy_(torch.from_numpy(objective.velocity[name].copy()))

    @torch.no_grad()
    def evaluate(self, images: _Images, batch: Indices) -> float:
        """Return the loss over these crops."""
        unflipped = np.zeros(len(batch), np.bool_)
        emb_BD = images.embed_all() if len(batch) == len(images) else images.embeddings(batch, unflipped)
        return float(self._loss(self._input(emb_BD, batch, unflipped)))

    def part_values(self) -> Vector:
        """Return the part's elements as they are now: shape (part.size,)."""
        return np.concatenate([_as_array(self._tensors[name]).reshape(-1) for name in self._part.names])

    def private_arrays(self) -> Arrays:
        """Return the private tensors as they are now."""
        return {name: _as_array(tensor).copy() for name, tensor in self._private.items()}

    def velocity_arrays(self) -> Arrays:
        """Return the private tensors' momentum as it is now."""
        velocities = self._groups[1].velocities
        return {name: _as_array(tensor).copy() for name, tensor in zip(self._private, velocities, strict=True)}

    def _optimiser(self) -> Sgd:
        """Return that of the part's parameters, under the objective's rule."""
        local, rule = self._local, self._objective.step_rule
        check_offset(rule, self._part)
        tensors = [self._tensors[name] for name in self._part.names]
        trained = [tensor for tensor in tensors if tensor.requires_grad]
        sgd = Sgd(trained, local.lr, local.momentum, local.weight_decay, rule.gradient_scale, proximal=rule.proximal)
        if rule.offset is not None:
            pieces = torch.split(torch.from_numpy(rule.offset.copy()).to(self._device), [t.numel() for t in tensors])
            pairs = zip(tensors, pieces, strict=True)
            sgd.offsets = [piece.reshape(tensor.shape) for tensor, piece in pairs if tensor.requires_grad]
        if rule.proximal:
            sgd.received = [tensor.detach().clone() for tensor in trained]
        return sgd

    def _input(self, emb_BD: Tensor, batch: Indices, flipped: Flags) -> LossInput:
        chosen = torch.from_numpy(batch).to(self._device)
        rows = {name: values[chosen] for name, values in self._per_crop.items()}
        mirrored = torch.from_numpy(flipped.astype(np.float32)).to(self._device)
        return LossInput(emb_BD, self._private, rows, self._objective.constants, self._fixed, mirrored)

    def step(self, images: _Images, batch: Batch) -> None:
        """Take one step on a batch; raises NonFiniteError where its loss is not finite."""
        tensors = [tensor for group in self._groups for tensor in group.tensors]
        gradients = self._gradients(images, batch.indices, batch.flipped, tensors)
        start = 0
        for group in self._groups:
            stop = start + len(group.tensors)
            group.step(gradients[start:stop], batch.rate)
            start = stop
        with torch.no_grad():
            for name in self._objective.unit_norm:
                self._private[name].copy_(l2_normalise(self._private[name]))

    def _gradients(self, images: _Images, batch: Indices, flipped: Flags, tensors: list[Tensor]) -> list[Tensor]:
        """Return the loss's gradients over a batch, added up over pieces of it that fit into memory."""
        size = self._micro_batch or len(batch)
        pieces = [slice(start, start + size) for start in range(0, len(batch), size)]
        if len(pieces) == 1:
            return self._piece_gradients(images, batch, flipped, tensors)
        weight_of = self._objective.per_crop.get("sample_weight", np.ones(len(images), np.float32))[batch]
        total = [torch.zeros_like(tensor) for tensor in tensors]
        for piece in pieces:
            share = float(weight_of[piece].sum() / weight_of.sum())
            if share == 0:  # a mean with no weight is not defined, and counts nothing
                continue
            for sum_so_far, gradient in zip(
                total, self._piece_gradients(images, batch[piece], flipped[piece], tensors), strict=True
            ):
                sum_so_far.add_(gradient, alpha=share)
        return total

    def _piece_gradients(self, images: _Images, batch: Indices, flipped: Flags, tensors: list[Tensor]) -> list[Tensor]:
        loss = self._loss(self._input(images.embeddings(batch, flipped), batch, flipped))
        if not torch.isfinite(loss):
            raise NonFiniteError("the training loss is NaN or infinite; lower local.lr")
        return list(torch.autograd.grad(loss, tensors, materialize_grads=True))


@dataclass
class Sgd:
    """Tensors under one learning rate: SGD with momentum, as `torch.optim.SGD` does it, under a `StepRule`.

    The rule's `offsets` and the `received` values of a proximal term are cut as the tensors are. Written out because
    that class loads torch's compiler when it is made: 3 s and 100 MB on a phone's first round. Simulations use it for
    the stacked tensors of many clients.
    """

    tensors: list[Tensor] = field(repr=False)
    lr: float
    momentum: float
    weight_decay: float = 0.0
    gradient_scale: float = 1.0
    offsets: list[Tensor] = field(default_factory=list, repr=False)
    proximal: float = 0.0
    received: list[Tensor] = field(default_factory=list, repr=False)
    keeps_velocity: bool = False
    velocities: list[Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        has_velocity = self.keeps_velocity or self.momentum > 0  # else a step's change is its gradient, and not copied
        self.velocities = [torch.zeros_like(tensor) for tensor in self.tensors] if has_velocity else []

    @classmethod
    def of_private(cls, tensors: list[Tensor], local: LocalSpec) -> Self:
        """Return that of private tensors, whose rate, momentum and weight decay are their own."""
        lr = local.lr if local.private_lr is None else local.private_lr
        momentum = local.momentum if local.private_momentum is None else local.private_momentum
        return cls(tensors, lr, momentum, local.private_weight_decay or 0.0, keeps_velocity=True)

    @property
    def _is_plain(self) -> bool:
        """True if a step is nothing but the gradient's."""
        return not (self.weight_decay or self.offsets or self.proximal or self.velocities)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], rate: float) -> None:
        """Take a gradient of each tensor: v <- mu v + rule(g + wd p); p <- p - rate lr v; None is a gradient of 0."""
        for i, (tensor, given) in enumerate(zip(self.tensors, gradients, strict=True)):
            if given is None and self._is_plain:
                continue
            gradient = torch.zeros_like(tensor) if given is None else given
            change = gradient.add(tensor, alpha=self.weight_decay) if self.weight_decay else gradient
            if self.gradient_scale != 1:
                change = change.mul(self.gradient_scale)
            if self.offsets:
                change = change.add(self.offsets[i])
            if self.proximal:
                change = change.add(tensor - self.received[i], alpha=self.proximal)
            if self.velocities:
                change = self.velocities[i].mul_(self.momentum).add_(change)
            tensor.sub_(change, alpha=rate * self.lr)


def _as_tensors(arrays: Arrays, device: torch.device) -> Tensors:
    return {name: torch.tensor(values, dtype=torch.float32, device=device) for name, values in arrays.items()}


def _as_array(tensor: Tensor) -> Vector:
    array: Vector = tensor.detach().cpu().numpy()
    return array


def _unit_embeddings(emb_ND: Tensor) -> Embeddings:
    return _finite(l2_normalise(emb_ND))


def _finite(emb_ND: Tensor) -> Embeddings:
    embeddings: Embeddings = _as_array(emb_ND)
    if not np.isfinite(embeddings).all():
        raise NonFiniteError("the model gave an embedding that is NaN or infinite; fetch the model again")
    return embeddings
