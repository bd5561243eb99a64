"""The reference runtime: PyTorch on the CPU, the arithmetic that every other runtime is compared with.

Suffixes of tensors: B batch, K classes, D embedding.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.runtimes.feature_cache import DEFAULT_CAPACITY_BYTES, FeatureCache
from device_sdk.runtimes.objectives import LossInput, Tensors, find_loss
from mien.backbones import Backbone, build_backbone, layout_of, load_theta
from mien.contribution import Arrays
from mien.errors import ConfigError, LayoutMismatchError, NonFiniteError
from mien.heads import l2_normalise
from mien.layout import ParameterLayout, ParameterPart, Vector
from mien.methods.base import Crops, Embeddings, Objective, Trained
from mien.specs import LocalSpec, ModelSpec

# Crops of one forward pass. Larger passes gain less than they lose on fresh memory pages: SFace on the project's 2-core
# machine takes 16 ms of CPU a crop at 4, 28 ms at 8 and 34 ms at 32, of which 20 in the kernel.
INFERENCE_BATCH: Final = 4


class TorchRuntime:
    """Embeds and trains with one backbone, in eval mode: BatchNorm never learns from one person's images.

    Crops' features before the first trained stage are kept in memory (`cache_bytes`), so that rounds after the first
    cost only the tail. Equal inputs and seeds give equal results on one machine with one thread.
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
    ) -> None:
        """Build the backbone that `spec` names, or take `backbone`; `cache` stands in for one of `cache_bytes`.

        Raises LayoutMismatchError where its layout is not the model's, ConfigError for an unknown name.
        """
        self._backbone = build_backbone(spec.backbone, spec.input) if backbone is None else backbone.eval()
        self._layout = layout_of(self._backbone)
        if self._layout.sha256 != layout.sha256:
            raise LayoutMismatchError(
                f"model has layout {layout.sha256[:12]}, backbone {spec.backbone} of this program has "
                f"{self._layout.sha256[:12]}; upgrade the older of the two"
            )
        self._threads = threads
        self._cache = FeatureCache(cache_bytes) if cache is None else cache
        self._split = self._backbone.split_for(layout.part(spec.trainable or ("*",)).names)

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return L2-normalised embeddings (N, dim) of aligned crops (N, H, W, 3) uint8 RGB.

        Raises NonFiniteError for an embedding that is not finite, ConfigError for crops of another size.
        """
        with self._running(theta):
            trunk = _Trunk(self._backbone, self._split, self._trunk_id(theta), self._cache)
            return _unit_embeddings(self._embed_all(trunk, crops))

    def features(self, theta: Vector, crops: Crops) -> NDArray[np.float32]:
        """Return embeddings (N, dim) of aligned crops as the backbone gives them, not normalised (see `embed`)."""
        with self._running(theta):
            trunk = _Trunk(self._backbone, self._split, self._trunk_id(theta), self._cache)
            return _finite(self._embed_all(trunk, crops))

    def train(
        self, theta: Vector, part: ParameterPart, crops: Crops, objective: Objective, local: LocalSpec, seed: int
    ) -> Trained:
        """Return what SGD makes of `part` and the objective's private tensors on `crops`, starting from `theta`.

        The losses before and after are those of all crops, not mirrored. Raises NonFiniteError when the loss or a
        parameter stops being finite, LayoutMismatchError for a part of another model.
        """
        if part.layout.sha256 != self._layout.sha256:
            raise LayoutMismatchError("the trained part belongs to another model; use the model that was assigned")
        if len(crops) == 0:
            raise ConfigError("there are no images to train on; enrol first")
        self._split = self._backbone.split_for(part.names)
        with self._running(theta), self._requiring_grad(part):
            job = _Training(self._backbone, part, objective, local)
            trunk = _Trunk(self._backbone, self._split, self._trunk_id(theta), self._cache)
            loss_before = job.evaluate(self._embed_all(trunk, crops))
            num_steps = job.run(trunk, crops, np.random.default_rng(seed))
            loss_after = job.evaluate(self._embed_all(trunk, crops))
            values = job.part_values()
        if not np.isfinite(values).all():
            raise NonFiniteError("local training diverged to NaN or infinity; lower local.lr")
        return Trained(part.scatter(theta, values), job.private_arrays(), loss_before, loss_after, num_steps)

    @contextlib.contextmanager
    def _running(self, theta: Vector) -> Iterator[None]:
        """Load the parameters and hold torch to this runtime's threads, which are otherwise the process's."""
        load_theta(self._backbone, self._layout, self._layout.check(theta))
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @contextlib.contextmanager
    def _requiring_grad(self, part: ParameterPart) -> Iterator[None]:
        names = set(part.names)
        for name, parameter in self._backbone.named_parameters():
            parameter.requires_grad_(name in names)
        try:
            yield
        finally:
            self._backbone.requires_grad_(False)

    def _trunk_id(self, theta: Vector) -> bytes:
        """Return a digest of the split and of every parameter before it: equal ids mean equal features."""
        frozen = set(self._backbone.stage_names[: self._split])
        digest = hashlib.sha256(str(self._split).encode())
        for entry in self._layout.entries:
            if entry.name.split(".", 1)[0] in frozen:
                start = self._layout.offsets[entry.name]
                digest.update(theta[start : start + entry.size].tobytes())
        return digest.digest()

    @torch.no_grad()
    def _embed_all(self, trunk: _Trunk, crops: Crops) -> Tensor:
        batches = [
            trunk.tail(trunk.features(crops[start : start + INFERENCE_BATCH]))
            for start in range(0, len(crops), INFERENCE_BATCH)
        ]
        return torch.cat(batches) if batches else torch.empty(0, self._backbone.input_spec.dim)


@dataclass(frozen=True)
class _Trunk:
    """The stages before `split`, which no training step changes, with their remembered features."""

    backbone: Backbone
    split: int
    trunk_id: bytes
    cache: FeatureCache = field(repr=False)

    def features(self, crops: Crops, flipped: NDArray[np.bool_] | None = None) -> Tensor:
        """Return the batch that enters stage `split`: crops, mirrored where `flipped` says so."""
        if flipped is None:
            flipped = np.zeros(len(crops), np.bool_)
        if self.split == 0:  # nothing to remember: the whole net is trained
            return self._compute(np.where(flipped[:, None, None, None], crops[:, :, ::-1], crops))
        return torch.stack(self.cache.features(self.trunk_id, crops, flipped, self._compute))

    def tail(self, features: Tensor) -> Tensor:
        """Return the embeddings (B, D) of a batch of features."""
        return self.backbone.tail(features, self.split)

    @torch.no_grad()
    def _compute(self, crops: Crops) -> Tensor:
        passes = [crops[start : start + INFERENCE_BATCH] for start in range(0, len(crops), INFERENCE_BATCH)]
        inputs = (torch.from_numpy(self.backbone.input_spec.network_input(each)) for each in passes)
        return torch.cat([self.backbone.trunk(x_BCHW, self.split) for x_BCHW in inputs])


class _Training:
    """One device's local training: the part's parameters and the private tensors under one optimiser."""

    def __init__(self, backbone: Backbone, part: ParameterPart, objective: Objective, local: LocalSpec) -> None:
        self._loss = find_loss(objective.name)
        self._part = part
        self._objective = objective
        self._local = local
        self._tensors = dict(backbone.named_parameters()) | dict(backbone.named_buffers())
        self._private = {
            name: torch.tensor(values, dtype=torch.float32, requires_grad=True)
            for name, values in objective.private.items()
        }
        self._fixed = _as_tensors(objective.fixed)
        self._per_crop = _as_tensors(objective.per_crop)
        trained = [self._tensors[name] for name in part.names if self._tensors[name].requires_grad]
        private_lr = local.lr if local.private_lr is None else local.private_lr
        self._groups = (
            _Group(trained, local.lr, local.weight_decay),
            # Private vectors are held at length 1: decay would only rescale them.
            _Group(list(self._private.values()), private_lr, 0.0),
        )

    def run(self, trunk: _Trunk, crops: Crops, rng: np.random.Generator) -> int:
        """Train for `local.epochs` and return the number of steps; batches and mirroring are drawn from `rng`."""
        size = self._local.batch_size or len(crops)
        num_steps = 0
        for epoch in range(self._local.epochs):
            rate = 0.1 if 0 < self._local.lr_drop_epoch <= epoch else 1.0
            order = rng.permutation(len(crops))
            flipped = rng.random(len(crops)) < 0.5 if self._local.flip else np.zeros(len(crops), np.bool_)
            for start in range(0, len(crops), size):
                batch = order[start : start + size]
                self._step(trunk.tail(trunk.features(crops[batch], flipped[batch])), batch, flipped[batch], rate)
                num_steps += 1
        return num_steps

    @torch.no_grad()
    def evaluate(self, emb_ND: Tensor) -> float:
        """Return the loss over all crops, given their embeddings in order."""
        everything = np.arange(len(emb_ND))
        return float(self._loss(self._input(emb_ND, everything, np.zeros(len(emb_ND), np.bool_))))

    def part_values(self) -> Vector:
        """Return the part's elements as they are now: shape (part.size,)."""
        return np.concatenate([self._tensors[name].detach().numpy().reshape(-1) for name in self._part.names])

    def private_arrays(self) -> Arrays:
        """Return the private tensors as they are now."""
        return {name: tensor.detach().numpy().copy() for name, tensor in self._private.items()}

    def _input(self, emb_BD: Tensor, batch: NDArray[np.int64], flipped: NDArray[np.bool_]) -> LossInput:
        chosen = torch.from_numpy(batch)
        rows = {name: values[chosen] for name, values in self._per_crop.items()}
        mirrored = torch.from_numpy(flipped.astype(np.float32))
        return LossInput(emb_BD, self._private, rows, self._objective.constants, self._fixed, mirrored)

    def _step(self, emb_BD: Tensor, batch: NDArray[np.int64], flipped: NDArray[np.bool_], rate: float) -> None:
        loss = self._loss(self._input(emb_BD, batch, flipped))
        if not torch.isfinite(loss):
            raise NonFiniteError("the training loss is NaN or infinite; lower local.lr")
        tensors = [tensor for group in self._groups for tensor in group.tensors]
        gradients = iter(torch.autograd.grad(loss, tensors, materialize_grads=True))
        for group in self._groups:
            group.step(gradients, self._local.momentum, rate)
        with torch.no_grad():
            for name in self._objective.unit_norm:
                self._private[name].copy_(l2_normalise(self._private[name]))


class _Group:
    """Tensors under one learning rate: SGD with momentum, as `torch.optim.SGD` does it.

    Written out because that class loads torch's compiler when it is made: 3 s and 100 MB on a phone's first round.
    """

    def __init__(self, tensors: list[Tensor], lr: float, weight_decay: float) -> None:
        self.tensors = tensors
        self._lr = lr
        self._weight_decay = weight_decay
        self._velocities = [torch.zeros_like(tensor) for tensor in tensors]

    @torch.no_grad()
    def step(self, gradients: Iterator[Tensor], momentum: float, rate: float = 1.0) -> None:
        """Take the next gradient of each tensor: v <- mu v + g + wd p; p <- p - rate lr v."""
        for tensor, velocity in zip(self.tensors, self._velocities, strict=True):
            velocity.mul_(momentum).add_(next(gradients)).add_(tensor, alpha=self._weight_decay)
            tensor.sub_(velocity, alpha=rate * self._lr)


def _as_tensors(arrays: Arrays) -> Tensors:
    return {name: torch.tensor(values, dtype=torch.float32) for name, values in arrays.items()}


def _unit_embeddings(emb_ND: Tensor) -> Embeddings:
    return _finite(l2_normalise(emb_ND))


def _finite(emb_ND: Tensor) -> Embeddings:
    embeddings: Embeddings = emb_ND.numpy()
    if not np.isfinite(embeddings).all():
        raise NonFiniteError("the model gave an embedding that is NaN or infinite; fetch the model again")
    return embeddings
