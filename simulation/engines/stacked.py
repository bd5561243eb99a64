"""The engine that trains many clients' weights as one batched tensor program.

Device halves are the methods' own; only what they want trained is gathered (`batched`) and trained together
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
from simulation.engines.base import Intake, RoundResult, RoundWork, named_client, on_read_only_model
from simulation.engines.batched import BatchedEngine, Device, Embedder, room_bytes
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
            images_bytes = 0
            if (job := device.job) is not None:
                images_bytes = len(job.crops) * self.image_bytes(job.theta, job.part)
            return 4 * _VECTORS * work.layout.size + images_bytes

        devices = (Device(name, work.method, work.device_input(name), embed) for name in work.devices)
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
