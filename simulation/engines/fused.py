"""The engine for methods of whose updates nothing is used but their sum: no client's own update is ever made.

After one step of SGD a client's update is -lr times its gradient on the model that all have received, and a round's sum
of updates, each times its factor k_c, is -lr times the gradient of the sum of k_c L_c: one forward and one backward
pass for many clients' images. After several steps clients' weights differ, by outer products (`OuterProducts`) where
they are linear maps; these are summed as they are. Both are exact where nothing but the sum comes of the updates
(`Property.SUM_ONLY`).

The factor is the method's own. Its device half is asked about a model of one parameter (`PROBE`), which training has
moved from 0 to 1: what it sends for it is k_c. All else, the other lanes and what the client keeps, does not depend on
the update, and is the client's.

Suffixes of tensors: C clients, B batch, R images of all clients, D embedding.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.runtimes.torch_runtime import TorchRuntime, Trunk
from mien.contribution import Total
from mien.errors import ConfigError, NonFiniteError
from mien.layout import ParameterEntry, ParameterLayout, ParameterPart, Vector
from mien.methods import find_method
from mien.methods.base import EARLIER, Crops, DeviceInput, Embeddings, Objective, Property, Trained, TrainingJob
from mien.specs import LocalSpec, TaskSpec
from simulation.engines.base import Intake, RoundResult, RoundWork, SequentialEngine, named_client, on_read_only_model
from simulation.engines.batched import BatchedEngine, Device, Embedder, room_bytes, trained_parameters
from simulation.engines.stacked import (
    Bank,
    Member,
    OwnTensors,
    Stack,
    batches_of,
    kind_of,
    padded,
    why_not_in_stacks,
    why_not_stacked,
)
from simulation.engines.sums import ExactSum, Sums

MEMORY_BYTES: Final = 1024 * 2**20
DELTA: Final = "delta"
# Vectors as long as what is made of a client's model: values, gradient and velocity, and one to sum them.
_MADE_VECTORS: Final = 4

PROBE: Final = ParameterLayout((ParameterEntry("probe", (1,)),)).part()
_BEFORE: Final = np.zeros(1, np.float32)
_AFTER: Final = np.ones(1, np.float32)
_EARLIER: Final = np.full(1, 2, np.float32)


def why_not_fused(task: TaskSpec, sums: Sums) -> str:
    """Return why a task's rounds cannot be one pass for the whole cohort, in words; empty where they can."""
    local = task.local
    if Property.FORWARD_ONLY in find_method(task.method).properties:
        return ""
    if Property.SUM_ONLY not in find_method(task.method).properties:
        return (
            f"method {task.method} needs each client's own update: nothing shows that a round takes no more than the "
            "sum of its updates"
        )
    if sums == "ring":
        return "sums in the ring clip and round each client's own update"
    if local.batch_norm == "train":
        return "local.batch_norm is 'train': BatchNorm would learn from all clients together"
    return ""


def takes_one_step(local: LocalSpec) -> bool:
    """Return whether every client takes a single step, whatever the number of its images."""
    return local.steps == 1 or (local.steps == 0 and local.epochs == 1 and local.batch_size == 0)


class FusedEngine(BatchedEngine):
    """Takes the steps of as many clients at once as fit into `memory_bytes`, on the tensors of `runtime`.

    Of a single step the loss after it is that of clients' own models, which are never made: records leave it out. The
    loss before it is the step's own where the batch was all images as they are, and else left out too. Of several
    steps both are measured.
    """

    name = "fused"

    def __init__(self, runtime: TorchRuntime, *, memory_bytes: int | None = None) -> None:
        super().__init__(runtime, room_bytes(runtime.device, MEMORY_BYTES) if memory_bytes is None else memory_bytes)
        self.num_fused = 0

    def train(self, work: RoundWork) -> RoundResult:
        """Return the result of the work's devices on its model; raises ConfigError for a task that cannot be fused."""
        why = why_not_fused(work.task, work.sums)
        if not takes_one_step(work.task.local):
            why = why or why_not_in_stacks(self.runtime)
        if why:
            raise ConfigError(f"engine fused cannot run task {work.task.name}: {why}. Use engine stacked, or auto")
        if Property.FORWARD_ONLY in work.method.properties:  # no step whose gradients could be one
            return SequentialEngine(self.runtime).train(work)
        work = on_read_only_model(work)
        intake, update = Intake(replace(work, part=PROBE)), np.zeros(work.part.size)
        unmeasured: frozenset[str] = frozenset()
        for chunk in self._begun(work):
            for group in _groups(chunk):
                unmeasured |= self._take_steps(work, group, update)
            for device in chunk:
                assert device.output is not None
                intake.take(device.name, device.output)
        return _whole(work, intake.result(), update, unmeasured)

    def _begun(self, work: RoundWork) -> Iterator[list[Device]]:
        """Yield devices, each run up to its training, as many as there is memory for their images."""
        known, meant = Embedder(self.runtime, work), _models_of_probes(work)

        def embed(theta: Vector, crops: Crops) -> Embeddings:
            return known(meant[float(theta[0])], crops)

        def taken_bytes(device: Device) -> int:
            assert device.job is not None, "a method that trains nothing gives a reason not to be fused"
            return self._taken_bytes(work, device.job)

        def features(theta: Vector, crops: Crops) -> Embeddings:
            return self.runtime.features(meant[float(theta[0])], crops)

        devices = (Device(name, work.method, _asked_about_probe(work, name), embed, features) for name in work.devices)
        return self.chunks(devices, taken_bytes)

    def _taken_bytes(self, work: RoundWork, job: TrainingJob) -> int:
        """Return the memory of a client: its images in a pass, its steps' rows, and what is made of its model."""
        cost, num_images = self.cost(work.state.theta, work.part), len(job.crops)
        if takes_one_step(work.task.local):
            return num_images * cost.training_bytes
        num_trained = sum(map(len, batches_of(job)))
        rows = cost.looks.rows(work.part, 2 * num_images, num_trained)
        num_made = work.part.size - sum(work.part.layout.sizes[name] for name in rows)
        return (num_images + num_trained) * cost.training_bytes + 4 * _MADE_VECTORS * num_made

    def _take_steps(self, work: RoundWork, group: Sequence[Device], update: NDArray[np.float64]) -> frozenset[str]:
        """Take a group's steps: answer and end its devices, and add to `update`; return the losses not measured."""
        with self.runtime.loaded(work.state.theta, work.part) as trunk:
            members = [self._member(work, trunk, device) for device in group]
            if takes_one_step(work.task.local):
                with _requiring_grad(list(trained_parameters(trunk, work.part).values())):
                    step = _Step(trunk, work.part, members)
                    self._end(work, group, step.answers())
                    is_finite, unmeasured = step.add_to(update, _factors(group)), step.unmeasured
            else:
                stack = Stack(trunk, members, self.cost(work.state.theta, work.part).looks)
                self._end(work, group, stack.probed(PROBE, _BEFORE, _AFTER))
                is_finite, unmeasured = stack.add_to(update, _factors(group)), frozenset()
        if not is_finite:
            self._blame(work, group)
        self.num_fused += len(group)
        return unmeasured

    def _end(self, work: RoundWork, group: Sequence[Device], answers: Sequence[Trained]) -> None:
        """Answer a group's devices, and run them to their ends; raise if there are no answers, as one is not finite."""
        for device, trained in zip(group, answers or self._blame(work, group), strict=True):
            device.answer(trained)
            with named_client(device.name):
                device.go_on()

    def _member(self, work: RoundWork, trunk: Trunk, device: Device) -> Member:
        """Return a device's training on the model itself, in the place of the probe."""
        assert device.job is not None
        job = replace(device.job, part=work.part, theta=work.state.theta)
        planned = batches_of(job)
        if why := _why_not_summed(job.objective):
            raise ConfigError(f"engine fused cannot run client {device.name}: {why}. Use engine stacked, or auto")
        return Member(job, planned, self.blocks.rows(trunk, job.crops, planned))

    def _blame(self, work: RoundWork, group: Sequence[Device]) -> NoReturn:
        """Run a group's devices one by one, so that whoever is not finite is named; raise in any case."""
        for device in group:
            with named_client(device.name):
                work.method.device_round(work.device_input(device.name), self.runtime)
        raise NonFiniteError(
            "the sum of clients' updates is NaN or infinite, and none of them is alone; lower local.lr"
        )


class _Step:
    """One step of a group of clients: forward when it is made, backward when every client's factor is known."""

    def __init__(self, trunk: Trunk, part: ParameterPart, members: Sequence[Member]) -> None:
        """Work out the group's losses; the part's parameters must require gradients until `add_to` is done."""
        self._part = part
        self._job = members[0].job
        self._own = OwnTensors(members, trunk.device)
        bank = Bank(members, trunk.device)
        chosen = bank.step(0)
        self._lengths = [len(indices) for indices, _ in chosen]
        self._trained = trained_parameters(trunk, part)
        self._emb_RD = trunk.tail(bank.images(chosen))
        # The loss's own small graph ends here: clients' tensors take their step before factors are known.
        self._leaf_RD = self._emb_RD.detach().requires_grad_()
        self._losses_C = self._own.losses(padded(self._leaf_RD, self._lengths), *bank.rows(chosen))
        self._gradient_RD = torch.zeros_like(self._leaf_RD)
        self._is_of_all = bank.is_everything(0)

    @property
    def unmeasured(self) -> frozenset[str]:
        """Losses that the step does not know: the one after it, and the one before unless all images were in it."""
        return frozenset({"loss_after"} if self._is_of_all else {"loss_before", "loss_after"})

    def answers(self) -> list[Trained]:
        """Return what training leaves of the probe and of each client's own tensors; none where it is not finite."""
        if not torch.isfinite(self._losses_C).all():
            return []
        wanted = [self._leaf_RD, *self._own.tensors]
        self._gradient_RD, *own = torch.autograd.grad(self._losses_C.sum(), wanted, materialize_grads=True)
        self._own.step(own, 1.0)
        if not bool(self._own.are_finite().all()):
            return []
        losses = self._losses_C.tolist() if self._is_of_all else [0.0] * len(self._lengths)
        return [
            Trained(PROBE, _BEFORE, _AFTER, private, loss, 0.0, num_steps=1, velocity=velocity)
            for (private, velocity), loss in zip(self._own.arrays(), losses, strict=True)
        ]

    def add_to(self, update: NDArray[np.float64], factors: Sequence[float]) -> bool:
        """Add the sum of clients' updates times their factors, -lr scale sum_c k_c (g_c + wd theta); return if finite.

        The rate is part of the rows' weights, so that a long gradient is read once.
        """
        local, rate = self._job.local, -self._job.local.lr * self._job.objective.step_rule.gradient_scale
        weight_R = torch.from_numpy(np.repeat(np.array(factors, np.float32) * np.float32(rate), self._lengths))
        weighted_RD = self._gradient_RD * weight_R.to(self._gradient_RD.device)[:, None]
        tensors = list(self._trained.values())
        gradients = torch.autograd.grad(self._emb_RD, tensors, weighted_RD, materialize_grads=True)
        named, decay = dict(zip(self._trained, gradients, strict=True)), rate * local.weight_decay * sum(factors)
        position, is_finite = 0, True
        for name in self._part.names:
            size = self._part.layout.sizes[name]
            if name in named:  # a buffer stays as it is
                change = named[name].add(self._trained[name].detach(), alpha=decay) if decay else named[name]
                is_finite &= bool(torch.isfinite(change.sum()))
                update[position : position + size] += change.reshape(-1).cpu().numpy()
            position += size
        return is_finite


def _asked_about_probe(work: RoundWork, device: str) -> DeviceInput:
    inp = work.device_input(device)
    reply = {**inp.reply, EARLIER: _EARLIER} if EARLIER in inp.reply else inp.reply
    return replace(inp, part=PROBE, theta=_BEFORE, reply=reply)


def _models_of_probes(work: RoundWork) -> dict[float, Vector]:
    """Return the whole models that a device half asks about, by the parameter of the probe that stands for each."""
    theta, meant = work.state.theta, {float(_BEFORE[0]): work.state.theta}
    earlier = work.method.reply(work.state, work.devices[0]).get(EARLIER)
    if earlier is not None:
        model = work.part.scatter(theta, earlier)
        model.flags.writeable = False
        meant[float(_EARLIER[0])] = model
    return meant


def _factors(group: Sequence[Device]) -> list[float]:
    """Return the factors of devices' updates in their contributions."""
    contributions = [device.output.contribution for device in group if device.output is not None]
    return [float(each.vector[each.layout.slices[DELTA]][0]) for each in contributions]


def _groups(chunk: Sequence[Device]) -> list[list[Device]]:
    """Return devices whose losses are one batched program."""
    kinds: dict[Hashable, list[Device]] = defaultdict(list)
    for device in chunk:
        assert device.job is not None
        kinds[kind_of(device.job, batches_of(device.job))].append(device)
    return list(kinds.values())


def _why_not_summed(objective: Objective) -> str:
    if objective.step_rule.offset is not None:
        return "its steps are moved by an offset that is as long as the model"
    return why_not_stacked(objective, "eval")


def _whole(
    work: RoundWork, probed: RoundResult, update: NDArray[np.float64], unmeasured: frozenset[str]
) -> RoundResult:
    """Return the result for the model itself: the update in the place of the probe's, and no loss that is not known."""
    layout, asked = work.layout, probed.total
    vector = np.zeros(layout.summed_size)
    for lane in layout.summed:
        vector[layout.slices[lane.name]] = update if lane.name == DELTA else asked[lane.name]
    for name in unmeasured:
        vector[layout.slices[name]] = math.nan
    total = Total(layout, vector, asked.num_reports)
    return RoundResult(ExactSum.of(total), probed.revealed, probed.private)


@contextlib.contextmanager
def _requiring_grad(tensors: Sequence[Tensor]) -> Iterator[None]:
    for tensor in tensors:
        tensor.requires_grad_(True)
    try:
        yield
    finally:
        for tensor in tensors:
            tensor.requires_grad_(False)
