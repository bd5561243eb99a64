"""A run from its faces to its evaluation: rounds, recorded one by one, resumed where a run was stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.runtimes.torch_runtime import DeviceName, TorchRuntime
from mien.backbones import build_backbone, layout_of, theta_of
from mien.errors import AlreadyExistsError, ConfigError, EmptyFolderError
from mien.evaluation import Comparisons, all_pairs
from mien.layout import ParameterPart, Vector, model_id
from mien.methods import find_method
from mien.methods.base import Crops, Property, Runtime, ServerState, ValidationFaces
from mien.methods.clustering import pairwise_scores
from mien.methods.fedfr_uda import LABELS as PSEUDO_LABELS
from mien.records import to_mapping
from mien.shell import provenance
from mien.shell.doing import doing
from mien.shell.files import make_folder, write_atomically
from mien.specs import ModelSpec
from simulation.engines.choice import InWorker, Place, choose, device, opened
from simulation.engines.engine import Cohort, PublicFaces, RoundRecord, Step, check_runnable, rounds
from simulation.engines.runtimes import OncePerRound, PublicOnly
from simulation.engines.sums import EpsilonSpent, cohort_sum, epsilon_spent
from simulation.faces.features import kept_features
from simulation.faces.models import Model, read_model, sface_with_adapter, write_model
from simulation.faces.sources import ClientFaces, Reader, counts_of, data_sha256, images_of_all
from simulation.runs import central, personal
from simulation.runs.measuring import MAP_PEOPLE, Measured, class_angles, eer_of, embedding_map, measured
from simulation.runs.personal import measured_personally
from simulation.runs.records import Header, RunFolder, only_writer, read_json, to_json
from simulation.runs.spec import ModelSource, Plan, RunSpec, differences, dry_plan, make_plan


def run_experiment(
    spec: RunSpec,
    folder: Path,
    root: Path,
    *,
    resume: bool = False,
    tell: Callable[[str], None],
    after_round: Callable[[Mapping[str, Any], int], None] = lambda _record, _total: None,
    address: str | None = None,
    on: DeviceName | None = None,
) -> dict[str, Any]:
    """Run an experiment to its end and return its evaluation; `root` is where the paths of its faces start.

    With `resume` a run that was stopped goes on from its last finished round, and one that is finished only answers.
    `after_round` gets each round's record, and how many rounds there will be. `address` is that of a running cluster,
    for the cluster engine. `on` is the device that trains and measures, by default as MIEN_SIM_DEVICE says, else the
    CPU. Raises AlreadyExistsError for a folder that is not free, or that another process writes,
    MissingDependencyError for a device that this machine lacks.
    """
    run = RunFolder(folder)
    if resume:
        _check_same(run.spec(), spec)
    else:
        run.check_free()
    with doing("Hashing the faces, which the records name"):
        faces_sha256 = data_sha256(spec.faces, root)
    header = Header.now(spec.name, to_mapping(spec), faces_sha256, spec.partition.seed)
    make_folder(folder)
    with only_writer(folder), spec.code.located() if spec.code else contextlib.nullcontext():
        return _run(run, spec, header, root, resume, tell, after_round, address, on or device())


def _run(
    run: RunFolder,
    spec: RunSpec,
    header: Header,
    root: Path,
    resume: bool,
    tell: Callable[[str], None],
    after_round: Callable[[Mapping[str, Any], int], None],
    address: str | None,
    on: DeviceName,
) -> dict[str, Any]:
    if resume:
        run.journal.check(header)
        if (finished := run.result()) is not None:
            run.finish()
            return finished
    # 1. Who holds what.
    spent = Spent()
    with doing("Dealing the faces to the phones, and reading the model"):
        plan = make_plan(spec, lambda source: counts_of(source, root))
        model = model_of(spec.model, root)
        part, private = check_start(plan, model, on)
    faces = read_faces(plan, model.spec, root)
    state, cohort, done = run.load(faces.cohort) or (None, faces.cohort, 0)
    if resume:
        run.journal.take_up(header, done)
        spent.add_rounds(run.records())
    else:
        run.start(spec, header)
    spent.note("faces")
    # 2. The model before training.
    cache = kept_features(model.spec.input, model.spec.backbone)
    trained_spec = dataclasses.replace(model.spec, trainable=tuple(part.names))
    runtime = TorchRuntime(trained_spec, model.layout, cache=cache, device=on, precision=spec.precision)
    begun = _Begun(run, plan, model, part, private, faces, runtime, spent, tell)
    with doing("Measuring the model before training"):
        before = measured(comparisons(runtime, model.theta, faces), spec.evaluation)
    tell(f"before training: EER {before.eer:.2%} on {faces.num_test_people} people")
    if private is not None:
        tell(str(private))
    for caution in _cautions(plan):
        tell(f"warning: {caution}")
    spent.note("before")
    theta, between = _pretrained(begun)
    spent.note("pretraining")
    # 3. Rounds, from the last finished one.
    task = spec.task
    start = find_method(task.method).server_start(task, part, theta) if spec.is_federated else ServerState(theta)
    place = Place(functools.partial(open_cohort, spec, root.resolve()), address)
    state, cohort, engine = _trained(begun, state or start, cohort, done, place, after_round)
    # 4. The model after training.
    with doing("Measuring the trained model"):
        after = measured(comparisons(runtime, state.theta, faces), spec.evaluation)
    shown = _shown(begun, state, cohort, between)
    spent.note("after")
    trained = Model(dataclasses.replace(model.spec, thresholds=()), model.layout, state.theta)
    if not (run.model / "model.json").exists():
        write_model(trained, run.model)
    found = _evaluation(plan, model, trained, before, after, faces)
    ran = {**to_mapping(run.journal.header()), "engine": {**engine, "device": on}}
    timed = {"cpu_s": spent.cpu_s, "wall_s": spent.wall_s}
    write_atomically(run.evaluation, to_json({**found, **shown, "run": {**ran, **timed}}))
    run.finish()
    return read_json(run.evaluation)


@dataclass(frozen=True)
class _Begun:
    """A run that has begun: its folder, who holds what, the model, what trains and measures it, and whom it tells."""

    run: RunFolder
    plan: Plan
    model: Model
    part: ParameterPart
    private: EpsilonSpent | None
    faces: Faces
    runtime: TorchRuntime
    spent: Spent
    tell: Callable[[str], None]

    @property
    def spec(self) -> RunSpec:
        """The run's specification."""
        return self.plan.spec

    def warnings(self) -> list[str]:
        """Return what the records of its rounds so far warn of, each once and in order."""
        return list(dict.fromkeys(kept["warning"] for kept in self.run.records() if "warning" in kept))


def _trained(
    begun: _Begun,
    state: ServerState,
    cohort: Cohort,
    done: int,
    place: Place,
    after_round: Callable[[Mapping[str, Any], int], None],
) -> tuple[ServerState, Cohort, dict[str, Any]]:
    """Return the server's state and the phones after all rounds behind the `done` ones, and what ran them, and why.

    Each round is recorded and told as soon as it is over.
    """
    spec, plan, faces, runtime = begun.spec, begun.plan, begun.faces, begun.runtime
    told, times, num_rounds = begun.warnings(), [time.monotonic()], spec.task.rounds
    with _steps(begun, state, cohort, done, place) as (name, reason, steps):
        for step in steps if spec.num_rounds else ():
            state, cohort = step.state, step.cohort
            lines = _round_record(step.record, with_losses=begun.private is None)
            record = {**lines, "engine": name, **begun.spent.note("rounds")}
            if spec.is_federated and step.record.round == 1 and (capped := _capped(plan, step.record)):
                record.setdefault("warning", capped)
            if spec.evaluation.every and step.record.round % spec.evaluation.every == 0:
                record["eer"] = eer_of(comparisons(runtime, state.theta, faces))
                begun.spent.note("after")
            begun.run.save(step, record)
            times.append(time.monotonic())
            begun.tell(_line(record, num_rounds, seconds_left(times, num_rounds - step.record.round)))
            if (warning := record.get("warning")) and warning not in told:
                told.append(warning)
                begun.tell(f"warning: round {record['round']}: {warning}")
            after_round(record, num_rounds)
    inner = sorted({worker for record in begun.run.records() for worker in record.get("workers", ())})
    return state, cohort, {"name": name, "reason": reason, **({"workers": inner} if inner else {})}


@contextlib.contextmanager
def _steps(
    begun: _Begun, state: ServerState, cohort: Cohort, done: int, place: Place
) -> Iterator[tuple[str, str, Iterator[Step]]]:
    """Give what trains, why, and the rounds behind the `done` ones, which are run as they are asked for."""
    spec, plan, part, runtime, model = begun.spec, begun.plan, begun.part, begun.runtime, begun.model
    if not spec.is_federated:
        reason = "everybody's faces are in one place"
        begun.tell(f"system {spec.system}: {reason}")
        steps = central.rounds(plan, begun.faces.reader, runtime, part, state, cohort, first=done + 1)
        yield spec.trains_by, reason, steps
        return
    trained_spec = dataclasses.replace(model.spec, trainable=tuple(part.names))
    in_worker = InWorker(trained_spec, model.layout, spec.task, part, spec.sums, spec.precision)
    trainer = _trainer(spec, runtime)
    with opened(spec.engine, trainer, spec.task, part, in_worker, place, spec.sums) as choice:
        begun.tell(str(choice))
        dim = model.spec.input.dim
        steps = rounds(spec.task, part, dim, state, cohort, choice.engine, first=done + 1, sums=spec.sums)
        yield choice.engine.name, choice.reason, steps


def _shown(begun: _Begun, state: ServerState, cohort: Cohort, between: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the evaluation shows besides the two models' figures; `between` is of the pre-trained one."""
    spec, plan, faces, runtime = begun.spec, begun.plan, begun.faces, begun.runtime
    warnings = begun.warnings()
    shown: dict[str, Any] = {"warnings": warnings} if warnings else {}
    if between is not None:
        shown["pretrained"] = between
    shown |= {"angles": class_angles(state, cohort), "map": _map(spec, runtime, state.theta, faces)}
    if clusters := _cluster_figures(plan, cohort, faces.clients):
        shown["clusters"] = clusters
        begun.tell(
            f"clusters of {clusters['clients']:.0f} clients without labels: {clusters['precision']:.1%} of pairs "
            f"of pictures in one are of one person, {clusters['recall']:.1%} of a person's pairs are in one"
        )
    if begun.private is not None:
        shown["privacy"] = dataclasses.asdict(begun.private)
    if spec.personal is not None:
        shown["personal"] = measured_personally(
            plan, state, cohort, begun.part, OncePerRound(runtime), faces.clients, faces.reader
        )
        begun.tell(_personal_line(shown["personal"], spec))
    return shown


def check_start(plan: Plan, model: Model, on: DeviceName) -> tuple[ParameterPart, EpsilonSpent | None]:
    """Return the part of the model that a run trains, and what its noise costs; raises as a run does that cannot start.

    All that can be found wrong before a picture is read is found here, a device that this machine lacks too.
    """
    spec, task, dim = plan.spec, plan.spec.task, model.spec.input.dim
    _check_tested(plan)
    part = model.layout.part(task.trainable or model.spec.trainable or ("*",))
    image_bytes = model.spec.input.width * model.spec.input.height * 3
    personal.check(plan, image_bytes)
    central.check(plan, image_bytes)
    trained = dataclasses.replace(model.spec, trainable=tuple(part.names))
    if not spec.is_federated:
        TorchRuntime(trained, model.layout, device=on, precision=spec.precision)
        return part, None
    method = find_method(task.method)
    _check_validators(plan)
    num, partition = len(_labelled_clients(plan)), plan.partition
    check_runnable(task, len(partition.clients), has_validators=bool(partition.validators), num_labelled=num)
    layout = method.contribution_layout(task, part, dim)
    private = epsilon_spent(task, layout)
    cohort_sum(task, layout, spec.sums, 1)
    method.server_start(task, part, model.theta)
    if spec.engine != "cluster":
        runtime = TorchRuntime(trained, model.layout, device=on, precision=spec.precision)
        choose(spec.engine, _trainer(spec, runtime), task, part, spec.sums)
    return part, private


def dry_run(spec: RunSpec, root: Path, *, on: DeviceName | None = None) -> dict[str, Any]:
    """Return who would hold what, without reading an image; raises as a run does that cannot start.

    Absent faces are made up at their declared size. In the place of an absent model stands a small one, with which all
    is checked but the names of its tensors.
    """
    plan = dry_plan(spec, root)
    absent = spec.model.source == "folder" and not (root / spec.model.path).is_dir()
    source = ModelSource(source="new", backbone="mobilefacenet_folded", dim=128) if absent else spec.model
    if absent:
        checked = replace(spec, task=replace(spec.task, trainable=()))
        plan = replace(plan, spec=checked, generated=(*plan.generated, spec.model.path))
    check_start(plan, model_of(source, root), on or device())
    return {**plan.summary(), "warnings": list(_cautions(plan))}


def _cautions(plan: Plan) -> tuple[str, ...]:
    """Return the warnings of a run that may not be what its method is for, the method's own first."""
    if not plan.spec.is_federated:
        return ()
    task, clients = plan.spec.task, len(plan.partition.clients)
    method, labelled = find_method(task.method), len(_labelled_clients(plan))
    told = [method.requirements(task).caution]
    if Property.UNLABELLED in method.properties and labelled in (0, clients):
        told.append(
            f"{task.method} adapts a labelled source's model to people without labels, and of the {clients} clients "
            f"{'none is labelled' if labelled == 0 else 'all are labelled: nobody clusters faces'}; give some of "
            'several [[faces]] a domain and labelled = false, and partition.scheme = "by_domain"'
        )
    return tuple(filter(None, told))


def _cluster_figures(plan: Plan, cohort: Cohort, clients: ClientFaces) -> dict[str, float]:
    """Return how the clusters that unlabelled clients made agree with whom they hold, as means over these clients.

    `precision` and `recall` are over pairs of pictures. Empty where no such client has taken part.
    """
    if not plan.spec.is_federated or Property.UNLABELLED not in find_method(plan.spec.task.method).properties:
        return {}
    targets = sorted(set(cohort.crops) - set(cohort.labels))
    numbered = [client for client in targets if PSEUDO_LABELS in cohort.private.get(client, {})]
    truth = clients.labels_of(numbered)
    scores = [
        pairwise_scores(truth[client], cohort.private[client][PSEUDO_LABELS].astype(np.int64)) for client in numbered
    ]
    if not scores:
        return {}
    return {
        "clients": float(len(scores)),
        "precision": float(np.mean([each.precision for each in scores])),
        "recall": float(np.mean([each.recall for each in scores])),
    }


def _pretrained(begun: _Begun) -> tuple[Vector, dict[str, Any] | None]:
    """Return the parameters that rounds start from, and how good they are where a training came before all else.

    A run that goes on finds them in its folder.
    """
    run, plan, model, faces, runtime = begun.run, begun.plan, begun.model, begun.faces, begun.runtime
    if plan.spec.central is None or plan.spec.central.pretrain is None:
        return model.theta, None
    if not (run.pretrained / "model.json").exists():
        theta = central.pretrained(plan, faces.reader, runtime, begun.part, model.theta)
        write_model(Model(dataclasses.replace(model.spec, thresholds=()), model.layout, theta), run.pretrained)
    theta = read_model(run.pretrained).theta
    found = measured(comparisons(runtime, theta, faces), plan.spec.evaluation)
    begun.tell(f"after pre-training: EER {found.eer:.2%}")
    return theta, {"model_id": model_id(model.layout.sha256, theta), **dataclasses.asdict(found)}


class Spent:
    """Time of a run's parts, in seconds of processor and of wall clock.

    Of a resumed run they are all of its rounds, and of the other parts this process's share: each process takes those
    anew.
    """

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}
        self.wall_s: dict[str, float] = {}
        self._last = (time.process_time(), time.monotonic())

    def add_rounds(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Count the time of rounds that an earlier process took."""
        for total, name in ((self.cpu_s, "cpu_s"), (self.wall_s, "wall_s")):
            total["rounds"] = round(math.fsum(record.get(name, 0.0) for record in records), 3)

    def note(self, part: str) -> dict[str, float]:
        """Count the time since the last note to `part` and return it."""
        now = (time.process_time(), time.monotonic())
        cpu, wall = (round(b - a, 3) for a, b in zip(self._last, now, strict=True))
        self._last = now
        self.cpu_s[part] = round(self.cpu_s.get(part, 0.0) + cpu, 3)
        self.wall_s[part] = round(self.wall_s.get(part, 0.0) + wall, 3)
        return {"cpu_s": cpu, "wall_s": wall}


def _trainer(spec: RunSpec, runtime: TorchRuntime) -> Runtime:
    """Return what phones train with: in a control their own pictures are left out."""
    return PublicOnly(OncePerRound(runtime)) if spec.control == "public_only" else OncePerRound(runtime)


def _map(spec: RunSpec, runtime: TorchRuntime, theta: Vector, faces: Faces) -> Mapping[str, Any]:
    if spec.map_kind == "none":
        return {}
    chosen = faces.test_labels < MAP_PEOPLE
    return embedding_map(runtime.embed(theta, faces.test_crops[chosen]), faces.test_labels[chosen], spec.map_kind)


def model_of(source: ModelSource, root: Path) -> Model:
    """Return the model that an experiment starts from; raises as `read_model` and `build_backbone` do."""
    if source.source == "sface":
        return sface_with_adapter()
    if source.source == "folder":
        return read_model(root / source.path)
    backbone = build_backbone(source.backbone, dim=source.dim, seed=source.seed)
    layout = layout_of(backbone)
    spec = ModelSpec(
        source.backbone, layout.sha256, backbone.input_spec, f"new weights, seed {source.seed}", "none", ("*",)
    )
    return Model(spec, layout, theta_of(backbone))


@dataclass(frozen=True)
class Faces:
    """The cohort, its clients' pictures as they are kept, and the test people's crops."""

    cohort: Cohort = field(repr=False)
    clients: ClientFaces = field(repr=False)
    test_crops: Crops = field(repr=False)
    test_labels: NDArray[np.int64] = field(repr=False)
    num_test_people: int
    reader: Reader = field(repr=False)


def open_cohort(spec: RunSpec, root: Path) -> Cohort:
    """Return an experiment's phones, in any process that has its faces below `root`: for workers of a cluster."""
    plan = make_plan(spec, lambda source: counts_of(source, root))
    reader = Reader(images_of_all(spec.faces, root), model_of(spec.model, root).spec.input)
    return _cohort(plan, reader, _clients(plan, reader))


def _clients(plan: Plan, reader: Reader) -> ClientFaces:
    return ClientFaces(reader, plan.partition.clients, reader.spec.width * reader.spec.height * 3)


def _cohort(plan: Plan, reader: Reader, clients: ClientFaces) -> Cohort:
    task = plan.spec.task
    needs_public = plan.spec.is_federated and find_method(task.method).requirements(task).public_faces
    public = PublicFaces(*reader.read(plan.partition.public)) if needs_public else None
    return Cohort(clients.crops, public=public, labels=clients.labels_of(_labelled_clients(plan)))


def read_faces(plan: Plan, model: ModelSpec, root: Path) -> Faces:
    """Return the crops of an experiment's phones and test people; raises EmptyFolderError without the latter."""
    _check_tested(plan)
    reader = Reader(images_of_all(plan.spec.faces, root), model.input)
    limit = plan.spec.evaluation.max_people or len(plan.partition.test)
    test = plan.partition.test[:limit]
    clients = _clients(plan, reader)
    cohort = replace(_cohort(plan, reader, clients), validators=_validators(plan, reader))
    crops, test_labels = reader.read(test)
    return Faces(cohort, clients, crops, test_labels, len(test), reader)


def _check_tested(plan: Plan) -> None:
    if not plan.partition.test:
        raise EmptyFolderError("the experiment has no test people; set partition.test above 1")


def _check_validators(plan: Plan) -> None:
    """Raise ConfigError where the task needs validators and the partition has none, or the reverse."""
    task, number = plan.spec.task, len(plan.partition.validators)
    if not find_method(task.method).requirements(task).validators:
        if number:
            raise ConfigError(f"partition.validators is {number}, and nobody judges in this task; leave it out")
        return
    if task.validators is None:
        raise ConfigError(
            f"{task.method} lets validators judge: say how many in a table [task.validators], or turn it off"
        )
    if number < 4 * task.validators.size:
        raise ConfigError(
            f"partition.validators is {number}; each of the {task.validators.size} validators of task.validators.size "
            "needs four people or more"
        )
    if plan.spec.partition.min_images < 2:
        raise ConfigError(
            "partition.min_images is 1; validators compare pictures of the same person, so set it to 2 or more"
        )


def _validators(plan: Plan, reader: Reader) -> Mapping[str, ValidationFaces]:
    """Return each validator's pairs: people are dealt in order of their domains, so that one has few domains."""
    task, people = plan.spec.task, plan.partition.validators
    stage = find_method(task.method).validation
    if not (plan.spec.is_federated and people and stage and task.validators):
        return {}
    order = sorted(people, key=lambda each: (plan.domains[each.identity], each.identity))
    groups = np.array_split(np.arange(len(order)), task.validators.size)
    held = [tuple(order[i] for i in group) for group in groups]
    return {f"validator-{number}": stage.faces(*reader.read(each)) for number, each in enumerate(held)}


def _labelled_clients(plan: Plan) -> list[str]:
    """Return the clients that know who of several people is who."""
    if plan.spec.partition.scheme == "one_identity":
        return []
    held = plan.partition.clients
    return [client for client, people in held.items() if plan.is_labelled(people[0].identity)]


def _check_same(kept: RunSpec, wanted: RunSpec) -> None:
    if changed := differences(kept, wanted):
        differ = ", ".join(f"{name} {old}, now {new}" for name, (old, new) in changed.items())
        fixed = "; a run that has begun keeps its number of rounds" if "task.rounds" in changed else ""
        raise AlreadyExistsError(
            f"the folder holds a run with other settings ({differ}){fixed}; name a new folder with --out"
        )


def comparisons(runtime: TorchRuntime, theta: Vector, faces: Faces) -> Comparisons:
    """Return the comparisons of all pairs of test people under a model."""
    return all_pairs(runtime.embed(theta, faces.test_crops), faces.test_labels, keep_subjects=True)


def _evaluation(
    plan: Plan, model: Model, trained: Model, before: Measured, after: Measured, faces: Faces
) -> dict[str, Any]:
    return {
        "experiment": plan.spec.name,
        "method": plan.spec.trains_by,
        "rounds": plan.spec.num_rounds,
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


def _round_record(record: RoundRecord, *, with_losses: bool) -> dict[str, Any]:
    """Return a round's record; a loss that the engine does not know, or that phones do not tell, is left out."""
    losses = {"loss_before": record.loss_before, "loss_after": record.loss_after} if with_losses else {}
    return {
        "round": record.round,
        "clients": len(record.devices),
        "weight": record.weight,
        **{name: loss for name, loss in losses.items() if not math.isnan(loss)},
        **({"staleness": record.staleness} if record.staleness else {}),
        **({"workers": list(record.workers)} if record.workers else {}),
        **({"warning": record.warning} if record.warning else {}),
    }


def _capped(plan: Plan, record: RoundRecord) -> str:
    """Return what is to be said where a mean by images is not one, for clients' weights end at the task's largest.

    The record's weight tells whether clients weigh by their images at all.
    """
    most, held = plan.spec.task.privacy.max_weight, plan.partition.clients
    images = {client: sum(len(each.images) for each in people) for client, people in held.items()}
    heavy = sum(number > most for number in images.values())
    by_images = sum(min(images[client], most) for client in record.devices)
    if most == 1 or not heavy or record.weight != by_images:
        return ""
    return (
        f"{heavy} of {len(images)} clients hold more images than privacy.max_weight ({most}) and weigh as if they had "
        "that many, so the mean is not by images; raise it where it is meant to be (up to 65535)"
    )


def seconds_left(times: Sequence[float], rounds_left: int) -> float | None:
    """Return how long the other rounds will take, from when a run began and when each of its rounds ended, in seconds.

    None after the first round alone: what is computed once, such as features of a frozen trunk, is in it.
    """
    if len(times) < 3:
        return 0.0 if rounds_left == 0 else None
    recent = times[1:][-_PACE_ROUNDS - 1 :]
    return (recent[-1] - recent[0]) / (len(recent) - 1) * rounds_left


_PACE_ROUNDS: Final = 20
"""Rounds by whose mean time the others' is told."""


def _personal_line(found: Mapping[str, Any], spec: RunSpec) -> str:
    figures = found["figures"]
    rates = ", ".join(
        f"TAR at FMR {target * 100:g} % {figures[name]:.2%}"
        for target in spec.evaluation.targets
        if (name := f"tar_{target:g}") in figures
    )
    rank = f"rank 1 {figures['rank1']:.2%}" if "rank1" in figures else "no rank 1 to be measured"
    left_out = max(found["left_out"].values(), default=0)
    unmeasured = f"; {left_out} of {found['clients']} clients lack images for some figure" if left_out else ""
    return f"clients' people, {found['model']} models: {rates or 'no TAR to be measured'}, {rank}{unmeasured}"


def _line(record: Mapping[str, Any], num_rounds: int, left_s: float | None) -> str:
    eer = f", EER {record['eer']:.2%}" if "eer" in record else ""
    losses = [f"{record[name]:.4f}" for name in ("loss_before", "loss_after") if name in record]
    loss = f", loss {' -> '.join(losses)}" if losses else ""
    left = "" if left_s is None else f"; about {left_s:.0f} s left"
    return f"round {record['round']}/{num_rounds}: {record['clients']} clients{loss}{eer}{left}"
