"""What engines share that train many clients at once: devices asked in pieces, their crops' features, and memory.

A device half is a pure function: it asks its runtime for something, and goes on with the answer. A `Device` runs it up
to its next training, which it does not answer; once the answer is there, the half is run again from the beginning, with
what it was answered before, and gets further. So a method is run as it is, on no other stack and in no other thread.
What comes before the training is worked out twice, which is little beside the training.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.runtimes.schedule import Batch
from device_sdk.runtimes.torch_runtime import TAIL_BATCH, TorchRuntime, Trunk
from mien.layout import ParameterPart, Vector
from mien.methods.base import (
    Crops,
    DeviceInput,
    DeviceOutput,
    Embeddings,
    Method,
    Runtime,
    Trained,
    TrainingJob,
    never_stop,
)
from mien.shell.memory import keep_freed_memory
from simulation.engines.base import RoundWork, named_client
from simulation.engines.linear_maps import Looks

KEPT_BYTES: Final = 192 * 2**20
Indices = NDArray[np.int64]
Embed = Callable[[Vector, Crops], Embeddings]


class Device:
    """One device's round in progress: after `go_on`, either `output` is there or `job` waits for `answer`."""

    def __init__(self, name: str, method: Method, inp: DeviceInput, embed: Embed, features: Embed) -> None:
        self.name = name
        self.job: TrainingJob | None = None
        self.output: DeviceOutput | None = None
        self._method = method
        self._inp = inp
        self._embed, self._features = embed, features
        self._answers: list[Embeddings | Trained] = []

    def answer(self, trained: Trained) -> None:
        """Give the device what became of its job."""
        self._answers.append(trained)
        self.job = None

    def go_on(self) -> None:
        """Run the device half to its next job or to its end; raises as it does."""
        try:
            self.output = self._method.device_round(self._inp, _Told(self._answers, self._embed, self._features))
        except _Waits as waits:
            self.job = waits.job


class _Waits(Exception):  # noqa: N818 - nothing went wrong
    """Unwinds a device half whose job has no answer yet; never seen outside this module."""

    def __init__(self, job: TrainingJob) -> None:
        super().__init__("a device half waits for its training")
        self.job = job


class _Told:
    """A runtime that knows its first answers already, and adds those that it can give at once."""

    def __init__(self, answers: list[Embeddings | Trained], embed: Embed, features: Embed) -> None:
        self._answers = answers
        self._embed, self._features = embed, features
        self._next = 0

    def embed(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the embeddings that were given before, or new ones."""
        return self._embedded(self._embed, theta, crops)

    def features(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the same as the network gives them."""
        return self._embedded(self._features, theta, crops)

    def _embedded(self, by: Embed, theta: Vector, crops: Crops) -> Embeddings:
        if self._next == len(self._answers):
            self._answers.append(by(theta, crops))
        given = self._given()
        assert not isinstance(given, Trained), "a device half asked for another thing than it did at first"
        return given

    def train(self, job: TrainingJob, should_stop: Callable[[], bool] = never_stop) -> Trained:
        """Return what was trained before, or unwind the device half until it is."""
        if self._next == len(self._answers):
            raise _Waits(job)
        given = self._given()
        assert isinstance(given, Trained), "a device half asked for another thing than it did at first"
        return given

    def _given(self) -> Embeddings | Trained:
        given = self._answers[self._next]
        self._next += 1
        return given


class Embedder:
    """Embeds by a runtime; what all devices ask for, the public faces, once a round."""

    def __init__(self, runtime: Runtime, work: RoundWork) -> None:
        self._runtime = runtime
        self._theta = work.state.theta
        self._public = work.cohort.public.crops if work.cohort.public else None
        self._known: Embeddings | None = None

    def __call__(self, theta: Vector, crops: Crops) -> Embeddings:
        """Return the embeddings of crops."""
        if crops is not self._public or theta is not self._theta:
            return self._runtime.embed(theta, crops)
        if self._known is None:
            self._known = self._runtime.embed(theta, crops)
            self._known.flags.writeable = False
        return self._known


@dataclass(frozen=True)
class TailCost:
    """Numbers that an image's pass through a tail leaves in memory, its convolutions' multiplications, and its maps."""

    activations: int
    convolution_macs: int
    looks: Looks = field(repr=False)

    @property
    def training_bytes(self) -> int:
        """Memory of one image during a training step: every number as it is, and its gradient."""
        return 2 * 4 * self.activations


def room_bytes(device: str, on_cpu: int) -> int:
    """Return what clients that are trained together may take: `on_cpu`, or on a GPU half of what is free there now."""
    return on_cpu if device == "cpu" else int(torch.cuda.mem_get_info()[0]) // 2


@torch.no_grad()
def tail_cost(trunk: Trunk, part: ParameterPart) -> TailCost:
    """Return the cost of a trunk's tail, found by passing one blank image through it, while `part` is trained."""
    shape = trunk.backbone.feature_shape(trunk.split)
    counted = {"activations": math.prod(shape), "macs": 0}

    def count(module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> None:
        counted["activations"] += output.numel()
        if isinstance(module, nn.Conv2d):
            counted["macs"] += output.numel() * module.weight[0].numel()

    leaves = [module for module in trunk.backbone.modules() if not next(module.children(), None)]
    hooks = [module.register_forward_hook(count) for module in leaves]
    try:
        blank = torch.zeros(1, *shape, device=trunk.device)
        looks = Looks.of(lambda: trunk.tail(blank), trained_parameters(trunk, part))
    finally:
        for hook in hooks:
            hook.remove()
    return TailCost(counted["activations"], counted["macs"], looks)


def trained_parameters(trunk: Trunk, part: ParameterPart) -> dict[str, Tensor]:
    """Return the backbone's parameters of a part, by name; its buffers are no parameters."""
    parameters = dict(trunk.backbone.named_parameters())
    return {name: parameters[name] for name in part.names if name in parameters}


@dataclass(frozen=True)
class Rows:
    """Features of one client's crops (R, ...), and which row holds a crop as it is and mirrored, (2, N); -1 if none."""

    features: Tensor = field(repr=False)
    place: Indices = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Memory that the features take."""
        return self.features.numel() * self.features.element_size()


class FeatureBlocks:
    """Remembers clients' blocks of features between rounds, least recently used first out.

    Only of crops that nobody can write to, which are known by the array they are; other crops are looked up one by one
    in the runtime's own cache. Without a trunk there is nothing to remember.
    """

    def __init__(self) -> None:
        self._size_bytes = 0
        self._trunk_id = b""
        self._kept: OrderedDict[int, tuple[weakref.ref[Crops], Rows]] = OrderedDict()

    @property
    def num_kept(self) -> int:
        """Number of clients whose blocks are remembered."""
        return len(self._kept)

    def rows(self, trunk: Trunk, crops: Crops, batches: Sequence[Batch]) -> Rows:
        """Return the features of all crops as they are, and of those that the batches mirror."""
        mirrored = np.zeros(len(crops), np.bool_)
        for batch in batches:
            mirrored[batch.indices[batch.flipped]] = True
        known = self._known(trunk, crops)
        rows = _plain(trunk, crops) if known is None else known
        missing = np.flatnonzero(mirrored & (rows.place[1] < 0))
        if len(missing):
            rows = _with_mirrored(trunk, crops, rows, missing)
        if rows is not known:
            self._keep(trunk, crops, rows)
        return rows

    def _known(self, trunk: Trunk, crops: Crops) -> Rows | None:
        if trunk.trunk_id != self._trunk_id:
            self._kept.clear()
            self._size_bytes, self._trunk_id = 0, trunk.trunk_id
        kept = self._kept.get(id(crops))
        if kept is None or kept[0]() is not crops:
            return None
        self._kept.move_to_end(id(crops))
        return kept[1]

    def _keep(self, trunk: Trunk, crops: Crops, rows: Rows) -> None:
        if trunk.split == 0 or crops.flags.writeable:
            return
        self._forget(id(crops))
        address = id(crops)
        self._kept[address] = (weakref.ref(crops, lambda _: self._forget(address)), rows)
        self._size_bytes += rows.num_bytes
        while self._size_bytes > KEPT_BYTES:
            self._forget(next(iter(self._kept)))

    def _forget(self, address: int) -> None:
        kept = self._kept.pop(address, None)
        if kept is not None:
            self._size_bytes -= kept[1].num_bytes


def _plain(trunk: Trunk, crops: Crops) -> Rows:
    pieces = [trunk.features(crops[start : start + TAIL_BATCH]) for start in range(0, len(crops), TAIL_BATCH)]
    if len(crops) <= TAIL_BATCH:  # the very array, whose digests may be known
        pieces = [trunk.features(crops)]
    place = np.stack([np.arange(len(crops)), np.full(len(crops), -1)])
    return Rows(pieces[0] if len(pieces) == 1 else torch.cat(pieces), place)


def _with_mirrored(trunk: Trunk, crops: Crops, rows: Rows, missing: Indices) -> Rows:
    added = trunk.features(crops[missing], np.ones(len(missing), np.bool_))
    place = rows.place.copy()
    place[1, missing] = len(rows.features) + np.arange(len(missing))
    return Rows(torch.cat([rows.features, added]), place)


class BatchedEngine:
    """A runtime with what engines keep that train many clients at once, as many as `memory_bytes` hold.

    Their tensors are some ten megabytes, which the C library would give back and fetch anew for every chunk, each page
    zeroed: a third of the time at 10^6 parameters. The process keeps them (`keep_freed_memory`).
    """

    def __init__(self, runtime: TorchRuntime, memory_bytes: int) -> None:
        self.runtime = runtime
        self.blocks = FeatureBlocks()
        self._memory_bytes = memory_bytes
        self._costs: dict[tuple[str, ...], TailCost] = {}
        if runtime.device == "cpu":
            keep_freed_memory(keep_bytes=2 * memory_bytes, largest_bytes=memory_bytes)

    def cost(self, theta: Vector, part: ParameterPart) -> TailCost:
        """Return the cost of the tail that is trained with a part."""
        if part.names not in self._costs:
            with self.runtime.loaded(theta, part) as trunk:
                self._costs[part.names] = tail_cost(trunk, part)
        return self._costs[part.names]

    def image_bytes(self, theta: Vector, part: ParameterPart) -> int:
        """Return the memory of one image while the part is trained on it."""
        return self.cost(theta, part).training_bytes

    def chunks(
        self, devices: Iterable[Device], taken_bytes: Callable[[Device], int], *, most: int | None = None
    ) -> Iterator[list[Device]]:
        """Yield devices, each run up to its first training, as many as may be in memory at once, and `most` of them."""
        chunk: list[Device] = []
        total_bytes = 0
        for device in devices:
            with named_client(device.name):
                device.go_on()
            chunk.append(device)
            total_bytes += taken_bytes(device)
            if len(chunk) == most or total_bytes >= self._memory_bytes:
                yield chunk
                chunk, total_bytes = [], 0
        if chunk:
            yield chunk
