"""The engine that trains many clients' weights as one batched tensor program.

Device halves are the methods' own; only what they want trained is gathered (`asking`) and trained together
(`stacking`), as many clients at once as fit into `memory_bytes`. What cannot be stacked is trained by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from device_sdk.runtimes.schedule import Batch
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.errors import ConfigError
from mien.methods.base import TrainingJob
from mien.shell.memory import keep_freed_memory
from simulation.engines.asking import Device, Embedder
from simulation.engines.base import Intake, RoundResult, RoundWork, named_client
from simulation.engines.costs import TailCost, room_bytes, tail_cost
from simulation.engines.features import FeatureBlocks
from simulation.engines.sequential import on_read_only_model
from simulation.engines.stacking import Member, Stack, batches_of, kind_of, why_not_stacked

MEMORY_BYTES: Final = 256 * 2**20
MAX_CLIENTS: Final = 128
# Vectors of the part's length that a client takes in a stack: values, gradient, velocity or offset, and its addends.
_VECTORS: Final = 6
# A client with more than so many times another's images is not stacked with it: the shorter would be mostly filling.
_RAGGED: Final = 1.5


def why_not_in_stacks(runtime: TorchRuntime) -> str:
    """Return why a runtime's trainings cannot be stacked, in words; empty where they can."""
    if runtime.precision == "bfloat16":
        return "torch's batched programs multiply in the precision of the weights, float32, and not in bfloat16"
    return ""


class StackedEngine:
    """Trains up to `max_clients` clients at once on a runtime's tensors, as many as `memory_bytes` hold.

    A stack's tensors are some ten megabytes, which the C library would give back and fetch anew for every chunk, each
    page zeroed: a third of the time at 10^6 parameters. The process keeps them (`keep_freed_memory`). Since the engine
    was made, `num_stacked` trainings were stacked and `num_alone` were not.
    """

    name = "stacked"

    def __init__(
        self, runtime: TorchRuntime, *, memory_bytes: int | None = None, max_clients: int = MAX_CLIENTS
    ) -> None:
        if why := why_not_in_stacks(runtime):
            raise ConfigError(f"engine stacked cannot use this runtime: {why}. Use engine sequential, fused or auto")
        self.runtime = runtime
        self.num_stacked = 0
        self.num_alone = 0
        self._memory_bytes = room_bytes(runtime.device, MEMORY_BYTES) if memory_bytes is None else memory_bytes
        self._max_clients = max_clients
        self._blocks = FeatureBlocks()
        if runtime.device == "cpu":
            keep_freed_memory(keep_bytes=2 * self._memory_bytes, largest_bytes=self._memory_bytes)
        self._costs: dict[tuple[str, ...], TailCost] = {}

    def train(self, work: RoundWork) -> RoundResult:
        """Return the result of the work's devices on its model, a chunk of them at a time."""
        work = on_read_only_model(work)
        intake, embed = Intake(work), Embedder(self.runtime, work)
        for chunk in self._chunks(work, embed):
            self._finish(chunk, intake)
        return intake.result()

    def _chunks(self, work: RoundWork, embed: Embedder) -> Iterator[list[Device]]:
        """Yield devices, each run up to its first training, as many as may be in memory at once."""
        chunk: list[Device] = []
        taken_bytes = 0
        for name in work.devices:
            device = Device(name, work.method, work.device_input(name), embed)
            with named_client(name):
                device.go_on()
            chunk.append(device)
            taken_bytes += 4 * _VECTORS * work.layout.size
            if device.job is not None:
                taken_bytes += self._image_bytes(device.job)
            if len(chunk) == self._max_clients or taken_bytes >= self._memory_bytes:
                yield chunk
                chunk, taken_bytes = [], 0
        if chunk:
            yield chunk

    def _image_bytes(self, job: TrainingJob) -> int:
        """Return the memory of a job's images while they are trained on."""
        if job.part.names not in self._costs:
            with self.runtime.loaded(job.theta, job.part) as trunk:
                self._costs[job.part.names] = tail_cost(trunk)
        return len(job.crops) * self._costs[job.part.names].training_bytes

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
                Member(each.job, each.planned, self._blocks.rows(trunk, each.job.crops, each.planned)) for each in group
            ]
            results = Stack(trunk, members).run()
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
