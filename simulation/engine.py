"""The reference engine: one client after another, the same method halves and the same runtime as on real phones.

Other engines must equal it to float tolerance; it is slow on purpose and short enough to check by eye.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, Total
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods import find_method
from mien.methods.base import Crops, DeviceInput, DeviceOutput, Runtime, ServerState
from mien.specs import TaskSpec


@dataclass(frozen=True)
class PublicFaces:
    """Public crops (K, H, W, 3) uint8 RGB with identity labels (K,), as a bundle's shard holds them."""

    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class RoundRecord:
    """What is known of a round afterwards: who took part, and weighted means of the devices' losses."""

    round: int
    devices: tuple[str, ...]
    weight: float
    loss_before: float
    loss_after: float


@dataclass(frozen=True)
class Cohort:
    """The simulated phones: crops by name, what each keeps to itself between rounds, and the public faces of all.

    `labels` number the identities of a phone's crops from 0; a phone that is not in it holds one identity.
    """

    crops: Mapping[str, Crops] = field(repr=False)
    private: Mapping[str, Arrays] = field(default_factory=dict, repr=False)
    public: PublicFaces | None = None
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Run:
    """A finished run: the server's last state, the phones as they are now, and one record a round."""

    state: ServerState = field(repr=False)
    cohort: Cohort = field(repr=False)
    records: tuple[RoundRecord, ...]


def run_task(
    task: TaskSpec,
    part: ParameterPart,
    dim: int,
    theta: Vector,
    cohort: Cohort,
    runtime: Runtime,
    *,
    after_round: Callable[[ServerState, RoundRecord], None] = lambda _state, _record: None,
) -> Run:
    """Return `task.rounds` rounds of the task's method from `theta`; clients and their draws follow `task.seed`.

    Raises ConfigError for an unknown method or option, or for fewer clients than the task's smallest cohort.
    """
    method = find_method(task.method)
    if len(cohort.crops) < task.cohort.min_reports:
        raise ConfigError(
            f"there are {len(cohort.crops)} clients and cohort.min_reports is {task.cohort.min_reports}; "
            "add clients or lower it"
        )
    state = method.server_start(task, part, theta)
    private: dict[str, Arrays] = dict(cohort.private)
    records = []
    for number in range(1, task.rounds + 1):
        devices = select(task, tuple(sorted(cohort.crops)), number)
        total = Total.empty(method.contribution_layout(task, part, dim))
        revealed: dict[str, Arrays] = {}
        for device in devices:
            inp = DeviceInput(
                task=task,
                part=part,
                dim=dim,
                theta=state.theta,
                crops=cohort.crops[device],
                labels=cohort.labels.get(device),
                private=private.get(device, {}),
                reply=method.reply(state, device),
                public_crops=cohort.public.crops if cohort.public else None,
                public_labels=cohort.public.labels if cohort.public else None,
                seed=device_seed(task, device, number),
            )
            output = method.device_round(inp, runtime)
            total = _receive(total, revealed, device, output)
            private[device] = output.private
        state = method.server_step(task, part, state, total, revealed)
        record = _record(number, devices, total)
        records.append(record)
        after_round(state, record)
    return Run(state, replace(cohort, private=private), tuple(records))


def select(task: TaskSpec, devices: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the cohort of a round: up to `task.cohort.size` devices drawn without replacement, in order of name."""
    rng = np.random.default_rng([task.seed, number])
    chosen = rng.permutation(len(devices))[: task.cohort.size]
    return tuple(devices[i] for i in sorted(chosen))


def device_seed(task: TaskSpec, device: str, number: int) -> int:
    """Return the seed of one device's local round: another for every device, round and task seed."""
    digest = hashlib.sha256(f"{device}/{task.name}/{task.seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _receive(total: Total, revealed: dict[str, Arrays], device: str, output: DeviceOutput) -> Total:
    """Return the sum with one more contribution, which travels as bytes here too."""
    contribution = total.layout.parse(output.contribution.to_bytes())
    if total.layout.revealed:
        revealed[device] = {lane: values.copy() for lane, values in contribution.revealed().items()}
    return total.plus(contribution)


def _record(number: int, devices: tuple[str, ...], total: Total) -> RoundRecord:
    return RoundRecord(
        round=number,
        devices=devices,
        weight=float(total["weight"][0]),
        loss_before=float(total.mean("loss_before")[0]),
        loss_after=float(total.mean("loss_after")[0]),
    )
