"""The engine that trains many clients' weights as one batched tensor program, and its stacks.

Device halves are the methods' own; only what they want trained is gathered (`batched`) and trained together, as many
clients at once as fit into `memory_bytes`. What cannot be stacked is trained by itself. In a stack the weights of many
devices lie in one tensor, and every step is one batched program.

The steps are those of `TorchRuntime`: the same batches in the same order, the same losses, the same optimiser. A stack
takes trainings of one kind (`kind_of`); batches of unequal length are filled up with images of weight 0, where the loss
knows weights, and only equal ones are stacked where it does not.

Suffixes of tensors: C clients, B batch, N images, P elements of the trained part, D embedding, I inputs, O outputs.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from device_sdk.runtimes.objectives import LossInput, Tensors, find_loss, is_mean_over_images, takes_sample_weight
from device_sdk.runtimes.schedule import Batch, batches
from device_sdk.runtimes.torch_runtime import TAIL_BATCH, Sgd, TorchRuntime, Trunk
from mien.contribution import Arrays
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Objective, Trained, TrainingJob
from mien.objectives.heads import l2_normalise
from simulation.engines.base import Intake, RoundResult, RoundWork, named_client, on_read_only_model
from simulation.engines.batched import BatchedEngine, Device, Embedder, Indices, Rows, room_bytes, trained_parameters
from simulation.engines.linear_maps import LinearMaps, Looks, OuterProducts, Step

MEMORY_BYTES: Final = 256 * 2**20
MAX_CLIENTS: Final = 128
# Vectors of the part's length that a client takes in a stack: values, gradient, velocity, offset, and its update.
_VECTORS: Final = 5
# Copies of a client's own tensors in a stack: values, gradient, velocity, and both as its round leaves them.
_OWN: Final = 5
# A client with more than so many times another's images is not stacked with it: the shorter would be mostly filling.
_RAGGED: Final = 1.5
WEIGHT: Final = "sample_weight"
Chosen = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Some of a client's images, by number, and which of them are mirrored."""


def why_not_in_stacks(runtime: TorchRuntime) -> str:
    """Return why a runtime's trainings cannot be stacked, in words; empty where they can."""
    if runtime.precision == "bfloat16":
        return "torch's batched programs multiply in the precision of the weights, float32, and not in bfloat16"
    if runtime.losses_on:
        return f"a stack's losses are of all crops, and this runtime's of {runtime.losses_on} (losses_on)"
    return ""


class StackedEngine(BatchedEngine):
    """Trains up to `max_clients` clients at once on a runtime's tensors, as many as `memory_bytes` hold.

    Since the engine was made, `num_stacked` trainings were stacked and `num_alone` were not.
    """

    name = "stacked"

    def __init__(
        self, runtime: TorchRuntime, *, memory_bytes: int | None = None, max_clients: int = MAX_CLIENTS
    ) -> None:
        if why := why_not_in_stacks(runtime):
            raise ConfigError(f"engine stacked cannot use this runtime: {why}. Use engine sequential, fused or auto")
        super().__init__(runtime, room_bytes(runtime.device, MEMORY_BYTES) if memory_bytes is None else memory_bytes)
        self.num_stacked = 0
        self.num_alone = 0
        self._max_clients = max_clients

    def train(self, work: RoundWork) -> RoundResult:
        """Return the result of the work's devices on its model, a chunk of them at a time."""
        work = on_read_only_model(work)
        intake, embed = Intake(work), Embedder(self.runtime, work)

        def taken_bytes(device: Device) -> int:
            addends_bytes = 4 * work.layout.size
            if (job := device.job) is None:
                return addends_bytes
            images_bytes = len(job.crops) * self.image_bytes(job.theta, job.part)
            return addends_bytes + 4 * _VECTORS * job.part.size + _own_bytes(job.objective) + images_bytes

        features = self.runtime.features
        devices = (Device(name, work.method, work.device_input(name), embed, features) for name in work.devices)
        for chunk in self.chunks(devices, taken_bytes, most=self._max_clients):
            self._finish(chunk, intake)
        return intake.result()

    def _finish(self, chunk: list[Device], intake: Intake) -> None:
        """Train what a chunk waits for until every device has ended, and take its contributions in order."""
        while chunk:
            self._answer([device for device in chunk if device.job is not None])
            waiting: list[Device] = []
            for device in chunk:
                with named_client(device.name):
                    if device.output is None:
                        device.go_on()
                if device.output is None or waiting:
                    waiting.append(device)
                else:
                    intake.take(device.name, device.output)
            chunk = waiting

    def _answer(self, devices: Sequence[Device]) -> None:
        """Answer every device's job: stacked with others of its kind, or by itself."""
        for group in self._groups(devices):
            if len(group) == 1:
                self._answer_alone(group[0].device, group[0].job)
            else:
                self._answer_stack(group)

    def _answer_stack(self, group: Sequence[_Waiting]) -> None:
        with self.runtime.loaded(group[0].job.theta, group[0].job.part) as trunk:
            members = [
                Member(each.job, each.planned, self.blocks.rows(trunk, each.job.crops, each.planned)) for each in group
            ]
            results = Stack(trunk, members, self.cost(group[0].job.theta, group[0].job.part).looks).run()
        for each, trained in zip(group, results, strict=True):
            if trained is None:  # by itself it fails in the runtime's own words, if it does
                self._answer_alone(each.device, each.job)
            else:
                each.device.answer(trained)
                self.num_stacked += 1

    def _answer_alone(self, device: Device, job: TrainingJob) -> None:
        with named_client(device.name):
            device.answer(self.runtime.train(job))
        self.num_alone += 1

    def _groups(self, devices: Sequence[Device]) -> Iterator[list[_Waiting]]:
        """Yield devices whose jobs can be one stack: of one kind, and of much the same number of images."""
        kinds: dict[Hashable, list[_Waiting]] = defaultdict(list)
        for device in devices:
            assert device.job is not None
            if why_not_stacked(device.job.objective, device.job.local.batch_norm):
                yield [_Waiting(device, device.job)]
            else:
                waiting = _Waiting(device, device.job, batches_of(device.job))
                kinds[kind_of(device.job, waiting.planned)].append(waiting)
        for alike in kinds.values():
            yield from _of_like_length(alike)


@dataclass(frozen=True)
class _Waiting:
    """A device, the job that it waits for, and the job's batches where it may be stacked."""

    device: Device
    job: TrainingJob
    planned: tuple[Batch, ...] = ()


def _of_like_length(alike: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    """Yield runs of jobs, shortest first, of which none has more than `_RAGGED` times the images of its first."""
    run: list[_Waiting] = []
    for waiting in sorted(alike, key=lambda each: len(each.job.crops)):
        if run and len(waiting.job.crops) > _RAGGED * len(run[0].job.crops):
            yield run
            run = []
        run.append(waiting)
    yield run


# Many devices' trainings as one.


@dataclass(frozen=True)
class Member:
    """One training of a stack: the job, its batches, and its crops' features."""

    job: TrainingJob
    batches: tuple[Batch, ...] = field(repr=False)
    rows: Rows = field(repr=False)

    @property
    def num_images(self) -> int:
        """Number of crops it trains on."""
        return len(self.job.crops)


def why_not_stacked(objective: Objective, batch_norm: str) -> str:
    """Return why such a training cannot be stacked with others, in words; empty where it can."""
    if not is_mean_over_images(objective.name):
        return f"objective {objective.name} compares the images of a batch, whose numbers of each kind differ"
    if batch_norm == "train":
        return "local.batch_norm is 'train': BatchNorm would learn from all clients together"
    return ""


def _own_bytes(objective: Objective) -> int:
    """Return what a client's tensors beside the model take in a stack."""
    fixed = (*objective.fixed.values(), *objective.per_crop.values())
    return sum(each.nbytes for each in fixed) + _OWN * sum(each.nbytes for each in objective.private.values())


def batches_of(job: TrainingJob) -> tuple[Batch, ...]:
    """Return the batches of a job, which its seed draws."""
    return tuple(batches(job.local, len(job.crops), np.random.default_rng(job.seed)))


def kind_of(job: TrainingJob, planned: Sequence[Batch]) -> Hashable:
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


class OwnTensors:
    """Clients' tensors beside the model, stacked: the private ones that they train, and what is fixed."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        objectives = [member.job.objective for member in members]
        self._objective, self._num_clients, self._device = objectives[0], len(members), device
        self._loss = find_loss(self._objective.name)
        self.fixed = _stacked([objective.fixed for objective in objectives], device)
        self.private = _stacked([objective.private for objective in objectives], device)
        for tensor in self.private.values():
            tensor.requires_grad_()
        self._sgd = Sgd.of_private(self.tensors, members[0].job.local)
        begun = _stacked([objective.velocity for objective in objectives], device)
        for name, velocity in zip(self.private, self._sgd.velocities, strict=True):
            if name in begun:
                velocity.copy_(begun[name])

    @property
    def tensors(self) -> list[Tensor]:
        """The private tensors in order."""
        return list(self.private.values())

    def loss(self, emb_BD: Tensor, private: Tensors, fixed: Tensors, rows: Tensors, mirrored_B: Tensor) -> Tensor:
        """Return one client's loss, for use in a batched program."""
        return self._loss(LossInput(emb_BD, private, rows, self._objective.constants, fixed, mirrored_B))

    def losses(self, emb_CBD: Tensor, rows: Tensors, mirrored_CB: Tensor) -> Tensor:
        """Return clients' losses (C,) of their embeddings."""
        losses_C: Tensor = torch.vmap(self.loss)(emb_CBD, self.private, self.fixed, rows, mirrored_CB)
        return losses_C

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], rate: float) -> None:
        """Take the private tensors' gradients."""
        self._sgd.step(gradients, rate)
        for name in self._objective.unit_norm:
            self.private[name].copy_(l2_normalise(self.private[name]))

    def are_finite(self) -> Tensor:
        """Return whose private tensors, and their momentum, are finite, (C,)."""
        found_C = torch.ones(self._num_clients, dtype=torch.bool, device=self._device)
        for tensor in (*self.tensors, *self._sgd.velocities):
            found_C &= torch.isfinite(tensor.detach()).reshape(self._num_clients, -1).all(1)
        return found_C

    def arrays(self) -> list[tuple[Arrays, Arrays]]:
        """Return each client's private tensors and their momentum, as they are now."""
        private = {name: tensor.detach().cpu().numpy() for name, tensor in self.private.items()}
        velocity = {name: each.cpu().numpy() for name, each in zip(private, self._sgd.velocities, strict=True)}
        return [(_row(private, c), _row(velocity, c)) for c in range(self._num_clients)]


class Stack:
    """Trainings of one kind, on the model that the trunk's backbone holds now.

    The weights of linear maps that `looks` names are kept as outer products where that is less work (`OuterProducts`);
    all other trained parameters of the clients are made, and are the `_weights`.
    """

    def __init__(self, trunk: Trunk, members: Sequence[Member], looks: Looks) -> None:
        self._trunk = trunk
        self._members = members
        self._job = members[0].job
        self._tail = Tail(trunk)
        self._bank = Bank(members, trunk.device)
        self._own = OwnTensors(members, trunk.device)
        self._trained = trained_parameters(trunk, self._job.part)
        self._outer = self._outer_products(looks)
        self._made = tuple(name for name in self._job.part.names if name not in self._outer)
        self._received = self._gathered(self._made)
        self._values_CP = self._received.repeat(len(members), 1)
        # `data`, not `detach`: pieces that know nothing of each other, since some are stepped while others are needed.
        self._weights = {name: piece.data.requires_grad_() for name, piece in self._pieces(self._values_CP).items()}
        self._velocities = self._of_stepping(looks)
        self._sgd = self._optimiser()
        self._is_finite = torch.ones(len(members), dtype=torch.bool, device=trunk.device)

    def train(self) -> list[tuple[float, float]]:
        """Take all steps, and return each client's losses before and after; NaN where its numbers are not finite."""
        before_C = None if self._bank.is_everything(0) else self._losses_before()
        for number in range(len(self._members[0].batches)):
            losses_C = self._step(number)
            before_C = losses_C if before_C is None else before_C  # a first step on all images knows it
        assert before_C is not None
        after_C = self._losses_after()
        self._is_finite &= torch.isfinite(self._values_CP.sum(1))  # a sum with NaN or infinity in it is none either
        self._is_finite &= self._own.are_finite()
        for products in self._outer.values():
            self._is_finite &= products.are_finite()
        return list(zip(before_C.tolist(), after_C.tolist(), strict=True))

    def run(self) -> list[Trained | None]:
        """Return what each training leaves, in order; None for one that is not finite."""
        losses = self.train()
        values_CP = self._whole_values().cpu().numpy()
        finite = self._is_finite.tolist()
        return [
            Trained(
                self._job.part,
                self._job.theta,
                values_CP[c],
                private=private,
                loss_before=before,
                loss_after=after,
                num_steps=len(self._members[0].batches),
                velocity=velocity,
            )
            if finite[c]
            else None
            for c, ((private, velocity), (before, after)) in enumerate(zip(self._own.arrays(), losses, strict=True))
        ]

    def probed(self, part: ParameterPart, before: Vector, after: Vector) -> list[Trained]:
        """Return the same with `before` and `after` of a probe in the model's place; none where one is not finite."""
        losses, num_steps = self.train(), len(self._members[0].batches)
        if not bool(self._is_finite.all()):
            return []
        return [
            Trained(part, before, after, private, *losses[c], num_steps=num_steps, velocity=velocity)
            for c, (private, velocity) in enumerate(self._own.arrays())
        ]

    def add_to(self, update: NDArray[np.float64], factors: Sequence[float]) -> bool:
        """Add the sum of clients' changes of the part, each times its factor; return whether it is finite."""
        factors_C = torch.tensor(factors, dtype=torch.float32, device=self._trunk.device)
        made = self._pieces((factors_C @ self._values_CP.sub_(self._received))[None])
        position, is_finite = 0, True
        for name in self._job.part.names:
            size = self._job.part.layout.sizes[name]
            if name in self._trained:  # a buffer stays as it is
                change = self._outer[name].change(factors_C) if name in self._outer else made[name]
                is_finite &= bool(torch.isfinite(change.sum()))
                update[position : position + size] += change.reshape(-1).cpu().numpy()
            position += size
        return is_finite

    def _outer_products(self, looks: Looks) -> dict[str, OuterProducts]:
        """Return the clients' weights that are kept as outer products, by name."""
        local, rule = self._job.local, self._job.objective.step_rule
        if rule.offset is not None:
            return {}
        rows = looks.rows(self._job.part, self._bank.num_rows, num_trained(self._members))
        return {
            name: OuterProducts(
                self._trained[name], len(self._members), num_rows, local, rule, fixed_input=looks.fixed_input[name]
            )
            for name, num_rows in rows.items()
        }

    def _gathered(self, names: Sequence[str]) -> Tensor:
        """Return what was received of some tensors, end to end."""
        layout, theta = self._job.part.layout, self._job.theta
        if names == self._job.part.names:
            return torch.from_numpy(self._job.part.gather(theta)).to(self._trunk.device)
        pieces = [theta[layout.offsets[name] : layout.offsets[name] + layout.sizes[name]] for name in names]
        return torch.from_numpy(np.concatenate([np.empty(0, np.float32), *pieces])).to(self._trunk.device)

    def _pieces(self, values_CP: Tensor) -> dict[str, Tensor]:
        """Return the made parameters' own pieces (C, ...) of rows like `_received`; buffers are left out."""
        sizes, pieces, position = self._job.part.layout.sizes, {}, 0
        for name in self._made:
            if name in self._trained:
                piece = values_CP[:, position : position + sizes[name]]
                pieces[name] = piece.view(len(values_CP), *self._trained[name].shape)
            position += sizes[name]
        return pieces

    def _whole_values(self) -> Tensor:
        """Return each client's values of the whole part (C, P)."""
        if not self._outer:
            return self._values_CP
        sizes, num_clients = self._job.part.layout.sizes, len(self._members)
        whole_CP = self._values_CP.new_empty(num_clients, self._job.part.size)
        position = made = 0
        for name in self._job.part.names:
            piece, position = whole_CP[:, position : position + sizes[name]], position + sizes[name]
            if name in self._outer:
                self._outer[name].write(piece.view(num_clients, *self._trained[name].shape))
            else:
                piece.copy_(self._values_CP[:, made : made + sizes[name]])
                made += sizes[name]
        return whole_CP

    def _of_stepping(self, looks: Looks) -> dict[str, Tensor | None]:
        """Return the made weights that take their steps within the backward pass, with their velocity if they have one.

        Those of linear maps, where steps are SGD's own.
        """
        local, rule = self._job.local, self._job.objective.step_rule
        if local.weight_decay or not rule.changes_nothing:
            return {}
        names = looks.fixed_input.keys() & self._weights.keys()
        return {name: torch.zeros_like(self._weights[name]) if local.momentum else None for name in names}

    def _optimiser(self) -> Sgd:
        """Return that of the made parameters that do not step by themselves, under the objectives' rule."""
        local, rule = self._job.local, self._job.objective.step_rule

        def stepped(values_CP: Tensor) -> list[Tensor]:
            return [piece for name, piece in self._pieces(values_CP).items() if name not in self._velocities]

        weights = [weight for name, weight in self._weights.items() if name not in self._velocities]
        sgd = Sgd(weights, local.lr, local.momentum, local.weight_decay, rule.gradient_scale)
        offsets = [member.job.objective.step_rule.offset for member in self._members]
        if rule.offset is not None:
            stacked = torch.from_numpy(np.stack([offset for offset in offsets if offset is not None]))
            sgd.offsets = stepped(stacked.to(self._trunk.device))
        if rule.proximal:
            sgd.proximal = rule.proximal
            sgd.received = stepped(self._received[None])
        return sgd

    def _step(self, number: int) -> Tensor:
        """Take a step, and return clients' losses (C,) on its images before it."""
        rate, chosen = self._members[0].batches[number].rate, self._bank.step(number)
        losses_C = self._losses(chosen, rate=rate * self._job.local.lr)
        self._is_finite &= torch.isfinite(losses_C.detach())
        losses_C.sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for products in self._outer.values():
                products.step(rate)
        self._sgd.step(_taken_gradients(self._sgd.tensors), rate)
        self._own.step(_taken_gradients(self._own.tensors), rate)
        return losses_C.detach()

    def _losses(self, chosen: Sequence[Chosen], *, rate: float = 0.0) -> Tensor:
        """Return clients' losses (C,) on chosen images by one batched program of their weights, tensors and images.

        With a `rate` their backward pass is also the step of the weights in `_velocities`.
        """
        momentum = self._job.local.momentum
        steps = {name: Step(rate, momentum, each) for name, each in self._velocities.items()} if rate else {}
        outer = [(self._trained[name], products) for name, products in self._outer.items()]
        x_CB, rows, mirrored_CB = self._bank.taken(chosen)
        if outer:
            places_CB = self._bank.places(chosen)
            for _, products in outer:
                products.at(places_CB)

        def loss_of(
            weights: Tensors, private: Tensors, fixed: Tensors, rows: Tensors, x_B: Tensor, mirrored_B: Tensor
        ) -> Tensor:
            with LinearMaps([(weights[name], step) for name, step in steps.items()], outer):
                emb_BD = functional_call(self._tail, dict(self._tail.named(weights)), (x_B,))
            return self._own.loss(emb_BD, private, fixed, rows, mirrored_B)

        own = self._own
        losses_C: Tensor = torch.vmap(loss_of)(self._weights, own.private, own.fixed, rows, x_CB, mirrored_CB)
        return losses_C

    @torch.no_grad()
    def _losses_before(self) -> Tensor:
        """Return the losses over all crops as they are: all clients have the same weights yet."""
        x_CN, rows, mirrored_CN = self._bank.taken(self._bank.everything())
        emb_RD = torch.cat([self._tail(piece) for piece in torch.split(x_CN.flatten(0, 1), 8 * TAIL_BATCH)])
        return self._own.losses(emb_RD.reshape(*x_CN.shape[:2], -1), rows, mirrored_CN)

    @torch.no_grad()
    def _losses_after(self) -> Tensor:
        return self._losses(self._bank.everything())


def num_trained(members: Sequence[Member]) -> int:
    """Return how many images a client of a stack is trained on in all its steps, filled up to the longest batch."""
    return sum(max(map(len, batches)) for batches in zip(*(member.batches for member in members), strict=True))


class Tail(nn.Module):
    """The stages behind a trunk as a module of their own, so that other weights can be put in the place of its own."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.backbone = trunk.backbone
        self._split = trunk.split

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings (B, D) of a batch of features, in float32 whatever they were multiplied in."""
        return self.backbone.tail(x, self._split).float()

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

    def everything(self) -> list[Chosen]:
        """Return all images of each member, as they are."""
        return [(np.arange(m.num_images), np.zeros(m.num_images, np.bool_)) for m in self._members]

    def step(self, number: int) -> list[Chosen]:
        """Return which images step `number` takes of each member, and which of them it mirrors."""
        return [(member.batches[number].indices, member.batches[number].flipped) for member in self._members]

    def is_everything(self, number: int) -> bool:
        """Return whether step `number` takes all images of each member, as they are."""
        return all(
            number < len(member.batches)
            and len(member.batches[number]) == member.num_images
            and not member.batches[number].flipped.any()
            for member in self._members
        )

    def images(self, chosen: Sequence[Chosen]) -> Tensor:
        """Return the chosen images (R, ...) end to end, with nothing between one member's and the next one's."""
        places = [
            start + member.rows.place[flipped.astype(np.int64), indices]
            for start, member, (indices, flipped) in zip(self._starts, self._members, chosen, strict=True)
        ]
        return self._features[torch.from_numpy(np.concatenate(places)).to(self._device)]

    @functools.cached_property
    def _numbers(self) -> list[Indices]:
        """Each member's numbers of its images as they are and mirrored, (2, N); -1 of those that no batch mirrors.

        Features that are remembered of earlier rounds have none: a sum over more rows, all of them zero, is rounded in
        another way, and a run that was resumed, which remembers nothing, would end at another model.
        """
        numbers = []
        for member in self._members:
            number_2N = np.full((2, member.num_images), -1)
            number_2N[0] = np.arange(member.num_images)
            mirrored = [batch.indices[batch.flipped] for batch in member.batches]
            found = np.unique(np.concatenate([np.empty(0, np.int64), *mirrored]))
            number_2N[1, found] = member.num_images + np.arange(len(found))
            numbers.append(number_2N)
        return numbers

    @property
    def num_rows(self) -> int:
        """Number of images of the member that has most, with those that its batches mirror."""
        return max(int(number_2N.max(initial=-1)) + 1 for number_2N in self._numbers)

    def places(self, chosen: Sequence[Chosen]) -> Tensor:
        """Return the numbers of chosen images among each member's own, (C, B), as `num_rows` counts them."""
        places = [
            number_2N[flipped.astype(np.int64), indices]
            for number_2N, (indices, flipped) in zip(self._numbers, chosen, strict=True)
        ]
        flat = torch.from_numpy(np.concatenate(places)).to(self._device)
        return padded(flat, [len(each) for each in places])

    def rows(self, chosen: Sequence[Chosen]) -> tuple[Tensors, Tensor]:
        """Return what goes with the chosen images, (C, B, ...), filled up to the longest at weight 0; and the flips."""
        shape = len(chosen), max(len(indices) for indices, _ in chosen)
        crop_CB = np.zeros(shape, np.int64)
        flipped_CB, counts_CB = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for c, (indices, flipped) in enumerate(chosen):
            crop_CB[c, : len(indices)], flipped_CB[c, : len(indices)] = indices, flipped
            counts_CB[c, : len(indices)] = 1
        crop_CB += self._row_starts[:, None]
        row_CB = torch.from_numpy(crop_CB).to(self._device)
        rows = {name: values[row_CB] for name, values in self._per_crop.items()}
        if not counts_CB.all():
            counts = torch.from_numpy(counts_CB).to(self._device)
            rows[WEIGHT] = rows[WEIGHT] * counts if WEIGHT in rows else counts
        return rows, torch.from_numpy(flipped_CB).to(self._device)

    def taken(self, chosen: Sequence[Chosen]) -> tuple[Tensor, Tensors, Tensor]:
        """Return the chosen images (C, B, ...), their rows, and which are mirrored (C, B)."""
        rows, mirrored_CB = self.rows(chosen)
        return padded(self.images(chosen), [len(indices) for indices, _ in chosen]), rows, mirrored_CB


def padded(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return rows (R, ...) cut to these lengths, one run a client, (C, B, ...); short ones repeat their first row."""
    longest = max(lengths)
    if all(length == longest for length in lengths):
        return x.reshape(len(lengths), longest, *x.shape[1:])
    within_CB = np.arange(longest)[None, :]
    lengths_C1 = np.array(lengths)[:, None]
    place_CB = np.where(within_CB < lengths_C1, within_CB, 0) + _starts(lengths)[:, None]
    return x[torch.from_numpy(place_CB).to(x.device)]


def _taken_gradients(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradients that a backward pass has left at tensors, and leave none."""
    gradients = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    return gradients


def _row(stacked: Arrays, c: int) -> Arrays:
    return {name: values[c].copy() for name, values in stacked.items()}


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.array([0, *itertools.accumulate(lengths)][:-1], np.int64)


def _stacked(arrays: Sequence[Arrays], device: torch.device) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(np.stack([np.asarray(each[name], np.float32) for each in arrays])).to(device)
        for name in arrays[0]
    }
