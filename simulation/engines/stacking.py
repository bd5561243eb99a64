"""Many devices' trainings as one: their weights lie stacked in one tensor, and every step is one batched program.

The steps are those of `TorchRuntime`: the same batches in the same order, the same losses, the same optimiser. A stack
takes trainings of one kind (`kind_of`); batches of unequal length are filled up with images of weight 0, where the loss
knows weights, and only equal ones are stacked where it does not.

Suffixes of tensors: C clients, B batch, N images, P elements of the trained part, D embedding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from device_sdk.runtimes.objectives import LossInput, Tensors, find_loss, is_mean_over_images, takes_sample_weight
from device_sdk.runtimes.schedule import Batch, batches
from device_sdk.runtimes.torch_runtime import TAIL_BATCH, Trunk
from mien.contribution import Arrays
from mien.heads import l2_normalise
from mien.methods.base import Objective, Trained
from simulation.engines.asking import Job
from simulation.engines.features import Rows

WEIGHT = "sample_weight"


@dataclass(frozen=True)
class Member:
    """One training of a stack: the job, its batches, and its crops' features."""

    job: Job
    batches: tuple[Batch, ...] = field(repr=False)
    rows: Rows = field(repr=False)

    @property
    def num_images(self) -> int:
        """How many crops it trains on."""
        return len(self.job.crops)


def why_not_stacked(objective: Objective, batch_norm: str) -> str:
    """Return why such a training cannot be stacked with others, in words; empty where it can."""
    if not is_mean_over_images(objective.name):
        return f"objective {objective.name} compares the images of a batch, whose numbers of each kind differ"
    if batch_norm == "train":
        return "local.batch_norm is 'train': BatchNorm would learn from all clients together"
    return ""


def batches_of(job: Job) -> tuple[Batch, ...]:
    """Return the batches of a job, which its seed draws."""
    return tuple(batches(job.local, len(job.crops), np.random.default_rng(job.seed)))


def kind_of(job: Job, planned: Sequence[Batch]) -> Hashable:
    """Return what trainings of one stack have in common: all but numbers and, where the loss knows weights, lengths."""
    objective, rule = job.objective, job.objective.step_rule
    lengths: tuple[int, ...] = ()
    if not takes_sample_weight(objective.name):
        lengths = (len(job.crops), *map(len, planned))
    return (
        id(job.theta),
        job.part.names,
        objective.name,
        tuple(sorted(objective.constants.items())),
        objective.unit_norm,
        tuple((name, values.shape) for name, values in objective.private.items()),
        tuple((name, values.shape) for name, values in objective.fixed.items()),
        tuple((name, values.shape[1:]) for name, values in objective.per_crop.items()),
        tuple(objective.velocity),
        (rule.gradient_scale, rule.proximal, None if rule.offset is None else rule.offset.shape),
        job.local,
        tuple(batch.rate for batch in planned),
        lengths,
    )


class Stack:
    """Trainings of one kind, on the model that the trunk's backbone holds now."""

    def __init__(self, trunk: Trunk, members: Sequence[Member]) -> None:
        self._trunk = trunk
        self._members = members
        job = members[0].job
        self._job, self._objective = job, job.objective
        self._loss = find_loss(job.objective.name)
        self._tail = Tail(trunk)
        self._bank = Bank(members, trunk.device)
        self._fixed = _stacked([member.job.objective.fixed for member in members], trunk.device)
        self._private = _stacked([member.job.objective.private for member in members], trunk.device)
        for tensor in self._private.values():
            tensor.requires_grad_()
        self._received = torch.from_numpy(job.part.gather(job.theta)).to(trunk.device)
        self._values_CP = self._received.repeat(len(members), 1)
        self._weights = {name: piece.detach().requires_grad_() for name, piece in self._pieces(self._values_CP).items()}
        self._is_finite = torch.ones(len(members), dtype=torch.bool, device=trunk.device)
        self._optimisers = self._two_optimisers()

    def run(self) -> list[Trained | None]:
        """Return what each training leaves, in order; None for one that is not finite."""
        before_C = self._losses_before()
        for number in range(len(self._members[0].batches)):
            self._step(number)
        after_C = self._losses_after()
        self._is_finite &= torch.isfinite(self._values_CP.sum(1))  # a sum with NaN or infinity in it is none either
        values_CP = self._values_CP.cpu().numpy()
        private = {name: tensor.detach().cpu().numpy() for name, tensor in self._private.items()}
        velocity = {
            name: each.cpu().numpy() for name, each in zip(private, self._optimisers[1].velocities, strict=True)
        }
        losses = zip(before_C.tolist(), after_C.tolist(), self._is_finite.tolist(), strict=True)
        return [
            Trained(
                self._job.part,
                self._job.theta,
                values_CP[c],
                private={name: values[c].copy() for name, values in private.items()},
                loss_before=before,
                loss_after=after,
                num_steps=len(self._members[0].batches),
                velocity={name: values[c].copy() for name, values in velocity.items()},
            )
            if is_finite
            else None
            for c, (before, after, is_finite) in enumerate(losses)
        ]

    def _pieces(self, values_CP: Tensor) -> dict[str, Tensor]:
        """Return the trained parameters' own pieces (C, ...) of rows like the part's; buffers are left out."""
        parameters = dict(self._trunk.backbone.named_parameters())
        pieces, position = {}, 0
        entries = {entry.name: entry for entry in self._job.part.layout.entries}
        for name in self._job.part.names:
            entry = entries[name]
            if name in parameters:
                piece = values_CP[:, position : position + entry.size]
                pieces[name] = piece.view(len(values_CP), *entry.shape)
            position += entry.size
        return pieces

    def _two_optimisers(self) -> tuple[Sgd, Sgd]:
        """Return those of the part and of the private tensors, with the rates of `TorchRuntime`."""
        local, rule = self._job.local, self._objective.step_rule
        offsets = [member.job.objective.step_rule.offset for member in self._members]
        model = Sgd(list(self._weights.values()), local.lr, local.momentum, local.weight_decay, rule.gradient_scale)
        if offsets[0] is not None:
            stacked = torch.from_numpy(np.stack([offset for offset in offsets if offset is not None]))
            model.offsets = list(self._pieces(stacked.to(self._trunk.device)).values())
        if rule.proximal:
            model.proximal = rule.proximal
            model.received = list(self._pieces(self._received[None]).values())
        own = Sgd(
            list(self._private.values()),
            local.lr if local.private_lr is None else local.private_lr,
            local.momentum if local.private_momentum is None else local.private_momentum,
            keeps_velocity=True,
        )
        begun = [member.job.objective.velocity for member in self._members]
        for name, velocity in zip(self._private, own.velocities, strict=True):
            if name in begun[0]:
                velocity.copy_(torch.from_numpy(np.stack([each[name] for each in begun])))
        return model, own

    def _step(self, number: int) -> None:
        x_CB, rows, mirrored_CB = self._bank.batch(number)
        losses_C = self._program()(self._weights, self._private, self._fixed, rows, x_CB, mirrored_CB)
        self._is_finite &= torch.isfinite(losses_C.detach())
        model, own = self._optimisers
        gradients = torch.autograd.grad(losses_C.sum(), [*model.tensors, *own.tensors], materialize_grads=True)
        rate = self._members[0].batches[number].rate
        model.step(gradients[: len(model.tensors)], rate)
        own.step(gradients[len(model.tensors) :], rate)
        with torch.no_grad():
            for name in self._objective.unit_norm:
                self._private[name].copy_(l2_normalise(self._private[name]))

    def _program(self) -> Callable[..., Tensor]:
        """Return clients' losses (C,) as one batched program of their weights, tensors and images."""

        def loss_of(
            weights: Tensors, private: Tensors, fixed: Tensors, rows: Tensors, x_B: Tensor, mirrored_B: Tensor
        ) -> Tensor:
            with _LinearMaps():
                emb_BD = functional_call(self._tail, dict(self._tail.named(weights)), (x_B,))
            return self._loss(LossInput(emb_BD, private, rows, self._objective.constants, fixed, mirrored_B))

        return torch.vmap(loss_of)

    @torch.no_grad()
    def _losses_before(self) -> Tensor:
        """Return the losses over all crops as they are: all clients have the same weights yet."""
        x_CN, rows, mirrored_CN = self._bank.everything()
        flat = x_CN.flatten(0, 1)
        emb_CND = torch.cat([self._tail(piece) for piece in torch.split(flat, 8 * TAIL_BATCH)])
        emb_CND = emb_CND.reshape(*x_CN.shape[:2], -1)

        def loss_of(emb_ND: Tensor, private: Tensors, fixed: Tensors, rows: Tensors, mirrored_N: Tensor) -> Tensor:
            return self._loss(LossInput(emb_ND, private, rows, self._objective.constants, fixed, mirrored_N))

        losses: Tensor = torch.vmap(loss_of)(emb_CND, self._private, self._fixed, rows, mirrored_CN)
        return losses

    @torch.no_grad()
    def _losses_after(self) -> Tensor:
        x_CN, rows, mirrored_CN = self._bank.everything()
        return self._program()(self._weights, self._private, self._fixed, rows, x_CN, mirrored_CN)


class _Linear(torch.autograd.Function):
    """y = x W', whose gradient of W is made as it lies in memory.

    Torch's batched program makes the gradient of W' and turns it round: of a million parameters and 10 images that
    takes 1.9 ms a client in place of 0.8, and the optimiser then reads it across.
    """

    @staticmethod
    def forward(x_BI: Tensor, weight_OI: Tensor) -> Tensor:
        """Return x W' (B, O)."""
        return x_BI @ weight_OI.mT

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], x_BI: Tensor, weight_OI: Tensor) -> tuple[Tensor, int]:
        """Return the same of stacked factors: the products are written for any axes before the last two."""
        x_CBI = x_BI.unsqueeze(0) if in_dims[0] is None else x_BI.movedim(in_dims[0], 0)
        weight_COI = weight_OI.unsqueeze(0) if in_dims[1] is None else weight_OI.movedim(in_dims[1], 0)
        return linear(x_CBI, weight_COI), 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep both factors."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_BO: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of x, where it has one, and of W."""
        x_BI, weight_OI = ctx.saved_tensors
        return grad_BO @ weight_OI if ctx.needs_input_grad[0] else None, grad_BO.mT @ x_BI


def linear(x_BI: Tensor, weight_OI: Tensor) -> Tensor:
    """Return x W' (B, O) by `_Linear`."""
    apply: Callable[[Tensor, Tensor], Tensor] = _Linear.apply
    return apply(x_BI, weight_OI)


class _LinearMaps(TorchFunctionMode):
    """Works out linear maps by `_Linear`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return what the function returns."""
        if func is not nn.functional.linear or kwargs or args[0].dim() != 2:
            return func(*args, **(kwargs or {}))
        x_BI, weight_OI, bias_O = (*args, None)[:3]
        y_BO = linear(x_BI, weight_OI)
        return y_BO if bias_O is None else y_BO + bias_O


class Tail(nn.Module):
    """The stages behind a trunk as a module of their own, so that other weights can be put in the place of its own."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.backbone = trunk.backbone
        self._split = trunk.split

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings (B, D) of a batch of features."""
        return self.backbone.tail(x, self._split)

    def named(self, weights: Tensors) -> Tensors:
        """Return the backbone's tensors by their names in this module."""
        return {f"backbone.{name}": tensor for name, tensor in weights.items()}


class Bank:
    """A stack's images and what goes with each, laid end to end, and the batches as indices into them."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self._members = members
        self._device = device
        self._features = torch.cat([member.rows.features for member in members])
        self._starts = _starts([len(member.rows.features) for member in members])
        self._row_starts = _starts([member.num_images for member in members])
        per_crop = [member.job.objective.per_crop for member in members]
        self._per_crop = {
            name: torch.from_numpy(np.concatenate([np.asarray(each[name], np.float32) for each in per_crop])).to(device)
            for name in per_crop[0]
        }

    def batch(self, number: int) -> tuple[Tensor, Tensors, Tensor]:
        """Return the images of step `number` (C, B, ...), their rows, and which are mirrored (C, B)."""
        return self._taken([(m.batches[number].indices, m.batches[number].flipped) for m in self._members])

    def everything(self) -> tuple[Tensor, Tensors, Tensor]:
        """Return all images as they are (C, N, ...), their rows, and that none is mirrored."""
        return self._taken([(np.arange(m.num_images), np.zeros(m.num_images, np.bool_)) for m in self._members])

    def _taken(self, chosen: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> tuple[Tensor, Tensors, Tensor]:
        """Return what is chosen of each member, filled up to the longest with its first image at weight 0."""
        shape = len(chosen), max(len(indices) for indices, _ in chosen)
        crop_CB = np.zeros(shape, np.int64)
        flipped_CB = np.zeros(shape, np.bool_)
        counts_CB = np.zeros(shape, np.float32)
        place_CB = np.zeros(shape, np.int64)
        for c, (indices, flipped) in enumerate(chosen):
            length = len(indices)
            crop_CB[c, :length], flipped_CB[c, :length], counts_CB[c, :length] = indices, flipped, 1
            place_CB[c] = self._members[c].rows.place[flipped_CB[c].astype(np.int64), crop_CB[c]]
        place_CB += self._starts[:, None]
        crop_CB += self._row_starts[:, None]
        x_CB = self._features[torch.from_numpy(place_CB).to(self._device)]
        row_CB = torch.from_numpy(crop_CB).to(self._device)
        rows = {name: values[row_CB] for name, values in self._per_crop.items()}
        if not counts_CB.all():
            counts = torch.from_numpy(counts_CB).to(self._device)
            rows[WEIGHT] = rows[WEIGHT] * counts if WEIGHT in rows else counts
        return x_CB, rows, torch.from_numpy(flipped_CB.astype(np.float32)).to(self._device)


class Sgd:
    """Stacked tensors under one learning rate: SGD with momentum as `TorchRuntime` takes it, for all clients."""

    def __init__(
        self,
        tensors: list[Tensor],
        lr: float,
        momentum: float,
        weight_decay: float = 0.0,
        gradient_scale: float = 1.0,
        *,
        keeps_velocity: bool = False,
    ) -> None:
        self.tensors = tensors
        has_velocity = keeps_velocity or momentum > 0
        self.velocities = [torch.zeros_like(tensor) for tensor in tensors] if has_velocity else []
        self.offsets: list[Tensor] = []
        self.proximal = 0.0
        self.received: list[Tensor] = []
        self._lr = lr
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._gradient_scale = gradient_scale

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Take a gradient of each tensor: v <- mu v + rule(g + wd p); p <- p - rate lr v."""
        for i, (tensor, gradient) in enumerate(zip(self.tensors, gradients, strict=True)):
            change = gradient.add(tensor, alpha=self._weight_decay) if self._weight_decay else gradient
            if self._gradient_scale != 1:
                change = change.mul(self._gradient_scale)
            if self.offsets:
                change = change.add(self.offsets[i])
            if self.proximal:
                change = change.add(tensor - self.received[i], alpha=self.proximal)
            if self.velocities:
                change = self.velocities[i].mul_(self._momentum).add_(change)
            tensor.sub_(change, alpha=rate * self._lr)


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.array([0, *itertools.accumulate(lengths)][:-1], np.int64)


def _stacked(arrays: Sequence[Arrays], device: torch.device) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(np.stack([np.asarray(each[name], np.float32) for each in arrays])).to(device)
        for name in arrays[0]
    }
