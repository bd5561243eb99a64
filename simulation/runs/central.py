"""A run's training in one place: before its rounds, or in their place, with a record for each as clients' rounds have.

Nothing here is private: it is what the federated systems are compared with, and what they start from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from mien.contribution import Arrays
from mien.errors import ConfigError
from mien.layout import ParameterPart, Vector
from mien.methods.base import Runtime, ServerState
from simulation.centralised.systems import Faces, Trainer, dan_loss, dann_loss
from simulation.engines.base import Cohort, device_seed
from simulation.engines.engine import RoundRecord, Step
from simulation.faces.partitions import Holding
from simulation.faces.sources import Reader, check_kept
from simulation.runs.spec import CentralSpec, Plan

EVERYBODY: Final = "everybody"
"""Name, in a checkpoint, of the one place: it keeps the class vectors."""


def check(plan: Plan, image_bytes: int) -> None:
    """Raise ConfigError where people are missing whom the training is on, or where memory cannot hold their crops."""
    spec, central = plan.spec, plan.spec.central or CentralSpec()
    groups = dict[str, tuple[Holding, ...]]()
    if central.pretrain is not None:
        groups["central.pretrain"] = _people(plan, central)
    if spec.system == "pooled":
        groups["system pooled"] = held(plan)
    elif spec.system in ("dan", "dann"):
        groups[f"system {spec.system}"] = held(plan, labelled=True)
        if not held(plan, labelled=False):
            raise ConfigError(f"system {spec.system} draws unlabelled people to labelled ones, and no client has any")
    for what, people in groups.items():
        if len(people) < 2:
            raise ConfigError(f"{what} tells people apart, and has {len(people)}; give it two or more")
    if spec.system in ("dan", "dann"):
        groups[f"system {spec.system}"] = held(plan)  # both are kept at once
    for what, people in groups.items():
        check_kept(
            f"{what} keeps all of its crops", people, image_bytes, "partition.identities, public or train_images"
        )


def held(plan: Plan, *, labelled: bool | None = None) -> tuple[Holding, ...]:
    """Return what clients hold, each person once and in order of name: all of it, or that of (un)labelled people."""
    images = dict[str, list[int]]()
    for holdings in plan.partition.clients.values():
        for each in holdings:
            if labelled is None or plan.is_labelled(each.identity) == labelled:
                images.setdefault(each.identity, []).extend(each.images)
    return tuple(Holding(name, tuple(sorted(images[name]))) for name in sorted(images))


def pretrained(plan: Plan, reader: Reader, runtime: Runtime, part: ParameterPart, theta: Vector) -> Vector:
    """Return the model after the training that comes before all else."""
    central = plan.spec.central
    assert central is not None
    assert central.pretrain is not None
    seed = device_seed(plan.spec.task, EVERYBODY, 0)
    return Trainer(runtime, part, central, central.pretrain, seed).supervised(
        theta, _faces(reader, _people(plan, central))
    )


def rounds(
    plan: Plan,
    reader: Reader,
    runtime: Runtime,
    part: ParameterPart,
    state: ServerState,
    cohort: Cohort,
    *,
    first: int = 1,
) -> Iterator[Step]:
    """Yield the rounds of a system in one place from `first` on: each is the task's local training of everybody.

    Class vectors, and a discriminator, go on from round to round, and momentum begins anew, as on a client. A run that
    goes on from a step equals one that never stopped.
    """
    task, central = plan.spec.task, plan.spec.central or CentralSpec()
    is_pooled = plan.spec.system == "pooled"
    source = _faces(reader, held(plan, labelled=None if is_pooled else True))
    target = source.crops[:0] if is_pooled else reader.read(held(plan, labelled=False))[0]
    dim = reader.spec.dim
    extra = dan_loss(central.trade_off) if plan.spec.system == "dan" else dann_loss(dim, central.reversal, task.seed)
    for number in range(first, plan.spec.num_rounds + 1):
        trainer = Trainer(runtime, part, central, task.local, device_seed(task, EVERYBODY, number))
        kept: Arrays = cohort.private.get(EVERYBODY, {})
        trained = (
            trainer.trained(state.theta, source, kept)
            if is_pooled
            else trainer.adapted(state.theta, source, target, extra, kept)
        )
        is_still = np.array_equal(trained.theta, state.theta)
        state = ServerState(trained.theta, rounds=number)
        private: Mapping[str, Arrays] = {EVERYBODY: trained.private}
        cohort = replace(cohort, private=private)
        yield Step(
            state,
            cohort,
            RoundRecord(
                round=number,
                devices=(EVERYBODY,),
                weight=float(len(source.crops) + len(target)),
                loss_before=trained.loss_before,
                loss_after=trained.loss_after,
                warning="the model did not move" if is_still else "",
            ),
        )


def _people(plan: Plan, central: CentralSpec) -> tuple[Holding, ...]:
    return plan.partition.public if central.on == "public" else held(plan, labelled=True)


def _faces(reader: Reader, people: tuple[Holding, ...]) -> Faces:
    """Return these people's crops, numbered without gaps where somebody's pictures all give no face."""
    crops, labels = reader.read(people)
    crops.flags.writeable = False  # so that they are hashed once
    return Faces(crops, np.unique(labels, return_inverse=True)[1].astype(np.int64))
