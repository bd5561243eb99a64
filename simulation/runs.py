"""Experiments that are run: one JSON record a round, a sealed checkpoint to go on from, one evaluation at the end.

A run's folder holds `experiment.json` (what was run), `rounds/00001.json` ..., `evaluation.json`, the trained model in
`model/`, and until it is finished `checkpoint.bin` with `checkpoint.key`. What clients keep to themselves (class
embeddings) is in the checkpoint only, and there encrypted.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.store.sealing import KEY_BYTES, Sealer
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones import build_backbone, layout_of, theta_of
from mien.errors import AlreadyExistsError, CorruptDataError, EmptyFolderError, NotFoundError, UndefinedMetricError
from mien.evaluation import (
    Comparisons,
    DetCurve,
    NotMeasurable,
    all_pairs,
    bootstrap_by_identity,
    det_curve,
    equal_error_rate,
    tar_at_fmrs,
)
from mien.layout import Vector, model_id
from mien.methods import find_method
from mien.methods.base import Crops, ServerState
from mien.records import from_mapping
from mien.shell.files import create_private, make_folder, read_limited, read_private, write_atomically
from mien.specs import ModelSpec
from mien.wire.tensors import pack_tensors, unpack_tensors
from simulation import provenance
from simulation.engine import Cohort, PublicFaces, RoundRecord, Step, rounds
from simulation.experiment import ExperimentSpec, ModelSource, Plan, describe, make_plan
from simulation.models import Model, read_model, write_model
from simulation.partitions import Holding
from simulation.sources import ClientFaces, Reader, counts_of, images_of
from simulation.workbench import sface

MAX_JSON_BYTES: Final = 16 << 20
MAX_CHECKPOINT_BYTES: Final = 8 << 30
_CURVE_POINTS: Final = 600


@dataclass(frozen=True)
class Measured:
    """A model's errors on the test people, as records hold them."""

    eer: float
    eer_low: float
    eer_high: float
    num_mated: int
    num_non_mated: int
    points: tuple[Mapping[str, Any], ...]
    curve: Mapping[str, Any] = field(repr=False)


class RunFolder:
    """A run's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rounds = folder / "rounds"
        self.experiment = folder / "experiment.json"
        self.evaluation = folder / "evaluation.json"
        self.model = folder / "model"
        self._checkpoint = folder / "checkpoint.bin"
        self._key = folder / "checkpoint.key"

    def start(self, spec: ExperimentSpec) -> None:
        """Make the folder of a new run; raises AlreadyExistsError for one that holds a run."""
        if self.experiment.exists():
            raise AlreadyExistsError(
                f"{self.folder} holds a run already; go on with it by --resume, or name a new folder with --out"
            )
        make_folder(self.rounds)
        write_atomically(self.experiment, _json(describe(spec)))

    def spec(self) -> ExperimentSpec:
        """Return what was run; raises NotFoundError where there is no run."""
        if not self.experiment.is_file():
            raise NotFoundError(f"{self.folder} holds no run; start one with mien-sim run")
        return from_mapping(ExperimentSpec, read_json(self.experiment))

    def records(self) -> list[dict[str, Any]]:
        """Return one record a round, in order."""
        return [read_json(path) for path in sorted(self.rounds.glob("*.json"))]

    def save_round(self, record: Mapping[str, Any]) -> None:
        """Write a round's record."""
        write_atomically(self.rounds / f"{record['round']:05d}.json", _json(record))

    def save(self, step: Step) -> None:
        """Write the sealed checkpoint of a round."""
        if not self._key.exists():
            create_private(self._key, np.random.default_rng().bytes(KEY_BYTES))
        tensors: dict[str, NDArray[Any]] = {"theta": step.state.theta, "round": np.array([step.record.round])}
        _put(tensors, "array", {"": step.state.arrays})
        _put(tensors, "revealed", step.state.revealed)
        _put(tensors, "private", step.cohort.private)
        _put(tensors, "validator", step.cohort.validator_private)
        sealed = self._sealer().seal(pack_tensors(tensors), place=b"checkpoint")
        write_atomically(self._checkpoint, sealed, private=True)

    def load(self, cohort: Cohort) -> tuple[ServerState, Cohort, int] | None:
        """Return state, cohort and number of the last finished round; None where no round was finished."""
        if not self._checkpoint.is_file():
            return None
        sealed = read_limited(self._checkpoint, MAX_CHECKPOINT_BYTES, what="checkpoint")
        tensors = unpack_tensors(self._sealer().open(sealed, place=b"checkpoint"), what="checkpoint")
        number = int(tensors["round"][0])
        arrays = _take(tensors, "array").get("", {})
        state = ServerState(tensors["theta"], arrays, _take(tensors, "revealed"), number)
        private, validator = _take(tensors, "private"), _take(tensors, "validator")
        return state, dataclasses.replace(cohort, private=private, validator_private=validator), number

    def finish(self) -> None:
        """Remove what was needed to go on: nothing of a client stays behind."""
        self._checkpoint.unlink(missing_ok=True)
        self._key.unlink(missing_ok=True)

    def _sealer(self) -> Sealer:
        return Sealer(read_private(self._key, what="checkpoint key"), "checkpoint")


def run_experiment(
    spec: ExperimentSpec, folder: Path, root: Path, *, resume: bool = False, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Run an experiment to its end and return its evaluation; `root` is where the paths of its faces start.

    With `resume` a run that was stopped goes on from its last finished round, and one that is finished only answers.
    """
    run = RunFolder(folder)
    if resume:
        _check_same(run.spec(), spec)
        if run.evaluation.is_file():
            return read_json(run.evaluation)
    # 1. Who holds what.
    plan = make_plan(spec, lambda source: counts_of(source, root))
    model = model_of(spec.model, root)
    faces = _read_faces(plan, model.spec, root)
    if not resume:
        run.start(spec)
    # 2. The model before training.
    task, part = spec.task, model.layout.part(spec.task.trainable or model.spec.trainable or ("*",))
    runtime = TorchRuntime(dataclasses.replace(model.spec, trainable=tuple(part.names)), model.layout)
    before = _measure(runtime, model.theta, faces, spec)
    tell(f"before training: EER {before.eer:.2%} on {faces.num_test_people} people")
    # 3. Rounds, from the last finished one.
    state, cohort, done = run.load(faces.cohort) or (
        find_method(task.method).server_start(task, part, model.theta),
        faces.cohort,
        0,
    )
    started = time.monotonic()
    for step in rounds(task, part, model.spec.input.dim, state, cohort, runtime, first=done + 1):
        state = step.state
        record = _round_record(step.record)
        if spec.evaluation.every and step.record.round % spec.evaluation.every == 0:
            record["eer"] = _eer(runtime, state.theta, faces)
        run.save(step)
        run.save_round(record)
        left = (time.monotonic() - started) / (step.record.round - done) * (task.rounds - step.record.round)
        tell(_line(record, task.rounds, left))
    # 4. The model after training.
    after = _measure(runtime, state.theta, faces, spec)
    trained = Model(dataclasses.replace(model.spec, thresholds=()), model.layout, state.theta)
    if not (run.model / "model.json").exists():
        write_model(trained, run.model)
    write_atomically(run.evaluation, _json(_evaluation(plan, model, trained, before, after, faces)))
    run.finish()
    return read_json(run.evaluation)


def model_of(source: ModelSource, root: Path) -> Model:
    """Return the model that an experiment starts from; raises as `read_model` and `build_backbone` do."""
    if source.source == "sface":
        return sface()
    if source.source == "folder":
        return read_model(root / source.path)
    backbone = build_backbone(source.backbone, dim=source.dim, seed=source.seed)
    layout = layout_of(backbone)
    spec = ModelSpec(
        source.backbone, layout.sha256, backbone.input_spec, f"new weights, seed {source.seed}", "none", ("*",)
    )
    return Model(spec, layout, theta_of(backbone))


def read_json(path: Path) -> dict[str, Any]:
    """Return a record; raises CorruptDataError for a file that is none."""
    try:
        data = json.loads(read_limited(path, MAX_JSON_BYTES, what=path.name))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"{path} is damaged; run the experiment again into a new folder") from error
    if not isinstance(data, dict):
        raise CorruptDataError(f"{path} is no record; run the experiment again into a new folder")
    return data


@dataclass(frozen=True)
class _Faces:
    """The cohort, and the test people's crops."""

    cohort: Cohort = field(repr=False)
    test_crops: Crops = field(repr=False)
    test_labels: NDArray[np.int64] = field(repr=False)
    num_test_people: int
    reader: Reader = field(repr=False)


def _read_faces(plan: Plan, model: ModelSpec, root: Path) -> _Faces:
    if not plan.partition.test:
        raise EmptyFolderError("the experiment has no test people; set partition.test above 1")
    reader = Reader({k: v for s in plan.spec.faces for k, v in images_of(s, root).items()}, model.input)
    image_bytes = model.input.width * model.input.height * 3
    clients = ClientFaces(reader, plan.partition.clients, image_bytes)
    limit = plan.spec.evaluation.max_people or len(plan.partition.test)
    test = plan.partition.test[:limit]
    public = (
        _public(reader, plan.partition.public)
        if find_method(plan.spec.task.method).needs_public_faces(plan.spec.task)
        else None
    )
    labels = {} if plan.spec.partition.scheme == "one_identity" else _known_labels(plan, clients)
    crops, test_labels = reader.read(test)
    return _Faces(Cohort(clients.crops, public=public, labels=labels), crops, test_labels, len(test), reader)


def _known_labels(plan: Plan, clients: ClientFaces) -> Mapping[str, NDArray[np.int64]]:
    """Return the labels of clients that know who is who; decoded when they are asked for."""
    unlabelled = {source.domain for source in plan.spec.faces if not source.labelled}
    held = plan.partition.clients
    return clients.labels_of([c for c, held_by in held.items() if plan.domains[held_by[0].identity] not in unlabelled])


def _public(reader: Reader, held: tuple[Holding, ...]) -> PublicFaces:
    return PublicFaces(*reader.read(held))


def _check_same(kept: ExperimentSpec, wanted: ExperimentSpec) -> None:
    old, new = describe(kept), describe(wanted)
    changed = [name for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
    if changed:
        raise AlreadyExistsError(
            f"the folder holds a run with another {' and '.join(sorted(changed))}; name a new folder with --out"
        )


def _measure(runtime: TorchRuntime, theta: Vector, faces: _Faces, spec: ExperimentSpec) -> Measured:
    scores = _comparisons(runtime, theta, faces)
    curve = det_curve(scores)
    interval = bootstrap_by_identity(
        scores,
        lambda c: equal_error_rate(c).value,
        rng=np.random.default_rng(0),
        num_replicates=spec.evaluation.replicates,
    )
    points = tuple(
        {"target_fmr": p.target_fmr, "not_measurable": p.reason}
        if isinstance(p, NotMeasurable)
        else {**dataclasses.asdict(p), "fmr": p.fmr, "tar": p.tar}
        for p in tar_at_fmrs(curve, spec.evaluation.targets)
    )
    eer = equal_error_rate(curve).value
    return Measured(eer, interval.low, interval.high, scores.num_mated, scores.num_non_mated, points, _thinned(curve))


def _eer(runtime: TorchRuntime, theta: Vector, faces: _Faces) -> float:
    try:
        return equal_error_rate(det_curve(_comparisons(runtime, theta, faces))).value
    except UndefinedMetricError:  # every score is the same
        return 0.5


def _comparisons(runtime: TorchRuntime, theta: Vector, faces: _Faces) -> Comparisons:
    return all_pairs(runtime.embed(theta, faces.test_crops), faces.test_labels, keep_subjects=True)


def _thinned(curve: DetCurve) -> dict[str, list[float]]:
    """Return at most some hundred points of a curve, dense at both ends, where one of the errors is rare."""
    last = curve.thresholds.size - 1
    steps = np.unique(np.geomspace(1, last + 1, _CURVE_POINTS // 2).astype(np.int64)) - 1
    rows = np.unique(np.concatenate([steps, last - steps, [last]]))
    return {
        "thresholds": curve.thresholds[rows].tolist(),
        "num_false_matches": curve.num_false_matches[rows].tolist(),
        "num_false_non_matches": curve.num_false_non_matches[rows].tolist(),
    }


def _evaluation(
    plan: Plan, model: Model, trained: Model, before: Measured, after: Measured, faces: _Faces
) -> dict[str, Any]:
    return {
        "experiment": plan.spec.name,
        "method": plan.spec.task.method,
        "rounds": plan.spec.task.rounds,
        "protocol": "partition-test-all-pairs",
        "protocol_version": "1",
        "seed": plan.spec.partition.seed,
        "partition": plan.partition.summary(),
        "test_people": faces.num_test_people,
        "failures": dict(faces.reader.failures),
        "before": {"model_id": model.model_id, **dataclasses.asdict(before)},
        "after": {"model_id": model_id(trained.layout.sha256, trained.theta), **dataclasses.asdict(after)},
        "commit": provenance.commit(),
        "command": provenance.command("mien-sim"),
    }


def _round_record(record: RoundRecord) -> dict[str, Any]:
    return {
        "round": record.round,
        "clients": len(record.devices),
        "weight": record.weight,
        "loss_before": record.loss_before,
        "loss_after": record.loss_after,
        **({"staleness": record.staleness} if record.staleness else {}),
    }


def _line(record: Mapping[str, Any], num_rounds: int, left_s: float) -> str:
    eer = f", EER {record['eer']:.2%}" if "eer" in record else ""
    return (
        f"round {record['round']}/{num_rounds}: {record['clients']} clients, loss {record['loss_before']:.4f} -> "
        f"{record['loss_after']:.4f}{eer}; about {left_s:.0f} s left"
    )


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _put(tensors: dict[str, NDArray[Any]], kind: str, arrays: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
    for owner, named in arrays.items():
        for name, values in named.items():
            tensors[json.dumps([kind, owner, name])] = np.asarray(values)


def _take(tensors: Mapping[str, NDArray[Any]], kind: str) -> dict[str, dict[str, NDArray[Any]]]:
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for key, values in tensors.items():
        if key.startswith("["):
            of, owner, name = json.loads(key)
            if of == kind:
                found.setdefault(owner, {})[name] = values
    return found
