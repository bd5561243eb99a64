"""Experiments: one TOML file says model, faces, partition, task and evaluation; records say what came of every round.

    name = "phones"
    [model]
    source = "sface"
    [[faces]]
    kind = "shipped"
    [partition]
    scheme = "one_identity"
    clients = 10
    test = 20
    [task]
    method = "fedavg"
    rounds = 3
    [evaluation]
    every = 1

A run writes one JSON record a round and, sealed under a key of its own folder, what it needs to go on after a kill.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Annotated, Any, Final, Literal, TypeGuard

import numpy as np

from mien.errors import ConfigError, EmptyFolderError, LayoutMismatchError, MienError, NotFoundError
from mien.methods.base import Method
from mien.methods.registry import METHODS, OUTSIDE_GROUP, enter, find_method
from mien.records import check_limits, from_mapping, parse_toml, to_mapping, within
from mien.specs import MAX_EPOCHS, LocalSpec, TaskSpec
from simulation.centralised.systems import Head
from simulation.faces.partitions import MAX_SEED, Counts, Partition, PartitionSpec, build
from simulation.faces.sources import RIGHT_THERE, FacesSource

MAX_TOML_BYTES: Final = 1 << 20
MAX_DIM: Final = 8192
MAX_REPLICATES: Final = 100_000
MapKind = Literal["pca", "tsne", "none"]
System = Literal["federated", "pretrained", "pooled", "dan", "dann"]


@dataclass(frozen=True)
class ModelSource:
    """Source of the model: pretrained `sface`, `folder` (`path` as model export writes it), or `new`.

    A new model is `backbone` with `dim` numbers an embedding, its weights drawn from `seed`.
    """

    source: Literal["sface", "folder", "new"] = "sface"
    path: str = ""
    backbone: str = ""
    dim: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.source == "folder") != bool(self.path) or (self.source == "new") != bool(self.backbone):
            raise ConfigError("model.path goes with model.source 'folder', model.backbone with 'new', and both need it")
        if not 1 <= self.dim <= MAX_DIM:
            raise ConfigError(f"model.dim is {self.dim}; it must lie between 1 and {MAX_DIM}")
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"model.seed is {self.seed}; it must lie between 0 and {MAX_SEED}")


@dataclass(frozen=True)
class CodeSource:
    """A method's file, the attribute that is the method, and the file's SHA-256.

    Its code runs where an experiment's file names it and in that run's workers; to read a run's records runs none.
    """

    path: str
    attribute: str
    sha256: str

    @classmethod
    def of(cls, named: str, folder: Path) -> CodeSource:
        """Return the source of a method that is named FILE.py:ATTRIBUTE, the file as seen from `folder`.

        Raises NotFoundError where there is no such file.
        """
        path, _, attribute = named.rpartition(":")
        file = (folder / path).absolute()
        if not file.is_file():
            raise NotFoundError(f"task.method is {named!r}, and there is no file {file}")
        return cls(str(file), attribute, hashlib.sha256(file.read_bytes()).hexdigest())

    def enter(self) -> str:
        """Run the file, make its method known in this process, and return the method's name.

        Raises ConfigError where the file changed meanwhile, does not run, or has no such method.
        """
        if self not in _ENTERED:
            method = getattr(self._module(), self.attribute, None)
            if method is None:
                raise ConfigError(f"{self.path} has no {self.attribute!r}; name the attribute that is the method")
            enter(method)
            _ENTERED[self] = method.name
        return _ENTERED[self]

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """A block whose errors of Mien's own tell which line of this file they come from, that of a worker's too.

        Of one that is none of its lines' an error of layout names the method: what it returned does not fit.
        """
        try:
            yield
        except MienError as error:
            told = "".join(traceback.format_exception(error))  # a worker's frames are there as text alone
            frames = re.findall(rf'File "{re.escape(self.path)}", line (\d+), in (\S+)', told)
            if frames:
                error.message += f" ({self.path}, line {frames[-1][0]}, in {frames[-1][1]})"
            elif isinstance(error, LayoutMismatchError):
                error.message += f" (after a step of {self.attribute} in {self.path}: look at what it returns)"
            error.args = (error.message, *error.args[1:])
            raise

    def _module(self) -> ModuleType:
        code = Path(self.path).read_bytes() if Path(self.path).is_file() else b""
        if hashlib.sha256(code).hexdigest() != self.sha256:
            raise ConfigError(f"{self.path} changed since this run began, or is gone; begin a new run with --out")
        module = ModuleType(f"mien_outside_{self.sha256[:16]}")
        module.__file__ = self.path
        sys.modules[module.__name__] = module  # where dataclasses look their annotations up
        try:
            exec(compile(code, self.path, "exec"), module.__dict__)  # noqa: S102 - the researcher's own code
        except Exception as error:
            raise ConfigError(f"{self.path} does not run: {type(error).__name__}: {error}") from error
        return module


_ENTERED: Final[dict[CodeSource, str]] = {}


@dataclass(frozen=True)
class CentralSpec(Head):
    """Training in one place: its head, and `pretrain`, what it does before all else, on the people that `on` names.

    These are the partition's public people, or those of clients whose faces are labelled (a source of domain
    adaptation). `trade_off` is DAN's, `reversal` DANN's.
    """

    pretrain: LocalSpec | None = None
    on: Literal["public", "labelled"] = "public"
    trade_off: Annotated[float, within(0, 1e3)] = 1.0
    reversal: Annotated[float, within(0, 1e3)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(self, "central.")


@dataclass(frozen=True)
class PersonalSpec:
    """Clients' own models, measured on the partition's probes of clients' people: 1:1 and 1:N.

    `model` is the one that each client uses: the `global` one, or of a fedfr task Theta_l (`local`), [Theta_l, Pi_l]
    (`branch`), or the global one after `epochs` of local training with CosFace (`fine_tune`), with distillation too
    (`distil`). Source: FedFR, Tables 1 to 3.
    """

    model: Literal["global", "local", "branch", "fine_tune", "distil"] = "global"
    epochs: Annotated[int, within(1, MAX_EPOCHS)] = 1

    def __post_init__(self) -> None:
        check_limits(self, "personal.")


@dataclass(frozen=True)
class EvaluationSpec:
    """Measurements of the model on the partition's test people: after every `every` rounds (0: at the end).

    All pairs of at most `max_people` of them (0: all) are compared; TAR is given at each of `targets`, the EER's
    interval comes from `replicates` bootstrap replicates over identities. `map` draws the embeddings of some of them,
    by default only where all faces are nobody's; a map of other people's faces is refused.
    """

    every: int = 0
    max_people: int = 0
    targets: tuple[float, ...] = (1e-1, 1e-2, 1e-3)
    replicates: int = 200
    map: Literal["auto", "pca", "tsne", "none"] = "auto"

    def __post_init__(self) -> None:
        if self.every < 0 or self.max_people < 0:
            raise ConfigError("evaluation.every and evaluation.max_people must not be negative")
        if not self.targets or any(not 0 < target <= 1 for target in self.targets):
            raise ConfigError("evaluation.targets are false match rates; each must lie above 0 and not above 1")
        if not 100 <= self.replicates <= MAX_REPLICATES:
            raise ConfigError(
                f"evaluation.replicates is {self.replicates}; it must lie between 100, which an interval needs, and "
                f"{MAX_REPLICATES}"
            )


@dataclass(frozen=True)
class RunSpec:
    """An experiment as its TOML file says it; `paper` names the table that it is the setting of.

    `control` "public_only" leaves the phones' own pictures out of their training: what is gained then is no merit of
    theirs. It goes with methods that train on public faces. `engine` says how a round's clients are run, which changes
    no result, and `precision` in what a GPU multiplies. `sums` "ring" adds up as secure aggregation does, with the
    clips, rounding and noise of the task, which differential privacy needs. `code` is the file of one's own method.

    `system` is what is trained: by default ("federated") the task's method, over clients. "pooled" takes the task's
    rounds on all that clients hold in one place, with the labels that are true, "dan" and "dann" on labelled and
    unlabelled people there; "pretrained" takes none. `central` is the training in one place. `personal` measures
    clients' own models.
    """

    name: str
    faces: tuple[FacesSource, ...]
    about: str = ""
    paper: str = ""
    control: Literal["none", "public_only"] = "none"
    engine: Literal["auto", "sequential", "stacked", "fused", "cluster"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    sums: Literal["exact", "ring"] = "exact"
    model: ModelSource = field(default_factory=ModelSource)
    partition: PartitionSpec = field(default_factory=PartitionSpec)
    task: TaskSpec = field(default_factory=lambda: TaskSpec(name="experiment"))
    evaluation: EvaluationSpec = field(default_factory=EvaluationSpec)
    code: CodeSource | None = None
    system: System | None = None
    central: CentralSpec | None = None
    personal: PersonalSpec | None = None

    def __post_init__(self) -> None:
        if self.system == "federated":
            object.__setattr__(self, "system", None)  # one meaning has one form, and so one hash
        if not self.faces:
            raise ConfigError("the experiment has no faces; add a table [[faces]]")
        self._check_central()
        if self.personal is not None:
            self._check_personal(self.personal)
        if not self.is_federated:
            pass  # of the task its rounds, its local training and its trained part count
        elif self.task.method in METHODS or self.code is None:  # else these are the records of a run, to be read
            self._check_method(find_method(self.task.method))
        if self.code is not None and self.engine == "cluster":
            raise ConfigError(
                "engine is 'cluster', whose machines do not have the file that task.method names; install the method "
                f"there as a package with an entry point in {OUTSIDE_GROUP!r}, or choose another engine"
            )
        if self.is_federated and self.sums == "exact" and self.task.privacy.dp.is_on:
            raise ConfigError("task.privacy.dp asks for clips and noise, which exact sums leave out; set sums = 'ring'")
        if self.evaluation.map in ("pca", "tsne") and not self.has_nobody:
            raise ConfigError(
                "evaluation.map draws embeddings, which a report shows of nobody's faces only; set faces.synthetic = "
                "true where they are that, or leave map out"
            )

    def _check_central(self) -> None:
        """Raise ConfigError where something is asked of one place that only clients have, or the reverse."""
        central = self.central or CentralSpec()
        if central.pretrain is not None and central.on == "public" and self.partition.public < 2:
            raise ConfigError("central.pretrain is on public people; set partition.public to 2 or more, or central.on")
        if self.is_federated:
            if self.central is not None and central.pretrain is None:
                raise ConfigError(
                    "[central] is for a system in one place, or for what comes before the rounds; set system, or "
                    "central.pretrain"
                )
            return
        asked = {"sums": "exact", "engine": "auto", "control": "none"}
        for name, plain in asked.items():
            if getattr(self, name) != plain:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}, which is about clients, and system {self.system} has none; "
                    f"leave {name} out"
                )
        unlabelled = [source for source in self.faces if not source.labelled]
        if self.system in ("dan", "dann") and len(unlabelled) in (0, len(self.faces)):
            raise ConfigError(
                f"system {self.system} draws unlabelled people to labelled ones; set faces.labelled to false for some "
                "of several [[faces]]"
            )

    def _check_personal(self, personal: PersonalSpec) -> None:
        if not self.partition.probe_images:
            raise ConfigError("[personal] is measured on images that nobody trains on; set partition.probe_images")
        if personal.model != "global" and self.trains_by != "fedfr":
            raise ConfigError(
                f"personal.model is {personal.model!r}, which the clients of a fedfr task have; {self.trains_by} "
                'leaves them the global one (personal.model = "global")'
            )

    @property
    def is_federated(self) -> bool:
        """True if clients train by the task's method."""
        return self.system is None

    @property
    def num_rounds(self) -> int:
        """Rounds that a run has."""
        return 0 if self.system == "pretrained" else self.task.rounds

    @property
    def trains_by(self) -> str:
        """What a run trains by, in a word: the task's method, or the system in one place."""
        return self.task.method if self.is_federated else str(self.system)

    def is_labelled(self, domain: str) -> bool:
        """Return whether a client that holds people of this domain knows who they are."""
        return all(source.labelled for source in self.faces if source.domain == domain)

    def _check_method(self, method: Method) -> None:
        try:
            from_mapping(method.options, self.task.options, where="task.options.")
        except ConfigError as error:
            raise ConfigError(f"{error} (options of {self.task.method})") from error
        if not method.trains:
            raise ConfigError(
                f"{self.task.method} measures and trains nothing, which an experiment has no figures for; give "
                "simulation.engines.engine.run_task phones of your own"
            )
        requirements = method.requirements(self.task)
        needs_public, fewest = requirements.public_faces, requirements.public_people
        if needs_public and self.partition.public < fewest:
            people = "one person" if fewest == 1 else f"{fewest} people"
            raise ConfigError(
                f"{self.task.method} needs public faces, of {people} or more; partition.public is "
                f"{self.partition.public}, raise it to {fewest}"
            )
        if self.control == "public_only" and not needs_public:
            raise ConfigError(f"{self.task.method} has no public faces to train on alone; set control to none")

    @property
    def has_nobody(self) -> bool:
        """True if all faces are of people who do not exist."""
        return all(source.is_nobody for source in self.faces)

    @property
    def map_kind(self) -> MapKind:
        """The kind of the report's map of embeddings."""
        kind = self.evaluation.map
        return kind if kind != "auto" else "pca" if self.has_nobody else "none"


def parse(text: str) -> RunSpec:
    """Return the experiment in a TOML text; raises ConfigError naming a field that is wrong, unknown or missing.

    The task's name is the experiment's, and its seed draws the clients' randomness. A table [sweep] is left out.
    """
    return from_data(parse_data(text)[0])


def parse_data(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a TOML text as plain data: the experiment, and its table [sweep] (empty where there is none)."""
    data = parse_toml(text, "the experiment")
    table = data.pop("sweep", {})
    if not isinstance(table, dict):
        raise ConfigError(f"sweep is {table!r}; it must be a table [sweep]")
    return data, table


def from_data(data: Mapping[str, Any]) -> RunSpec:
    """Return the experiment in plain data as its file holds it; raises as `parse`."""
    task = data.get("task", {})
    if isinstance(task, Mapping) and "name" not in task:
        data = {**data, "task": {**task, "name": data.get("name", "")}}
    return from_mapping(RunSpec, data)


def with_code(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return plain data whose task.method FILE.py:ATTRIBUTE became a method's name, with its `code`, which ran.

    That is an experiment, or a sweep's case with its fields by path. Raises as `CodeSource`.
    """
    task = data.get("task")
    named = task.get("method") if isinstance(task, dict) else data.get("task.method")
    if not isinstance(named, str) or ".py:" not in named:
        return data
    code = CodeSource.of(named, folder)
    name = code.enter()
    method = {"task": {**task, "method": name}} if isinstance(task, dict) else {"task.method": name}
    return {**data, **method, "code": to_mapping(code)}


def load(path: Path, faces: Mapping[str, str] = MappingProxyType({})) -> RunSpec:
    """Return the experiment in a file; raises NotFoundError where there is none, else as `parse`."""
    return from_data(load_data(path, faces)[0])


def load_data(path: Path, faces: Mapping[str, str] = MappingProxyType({})) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an experiment's file as `parse_data` does, methods of files named by it entered.

    `faces`, unless empty, stands in for all tables [[faces]] of the file; what lies right in a folder does so only
    where these are all shipped ones, for else the folder is where their paths start. It stands in for each of several
    shipped ones, which keep their people, domains and labels.

    Raises NotFoundError where there is none, and as `with_code`.
    """
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; name an experiment's TOML file")
    if path.stat().st_size > MAX_TOML_BYTES:
        raise ConfigError(f"{path} has more than {MAX_TOML_BYTES} bytes; it is no experiment")
    try:
        data, table = parse_data(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file; name an experiment's TOML file") from error
    if isinstance(cases := table.get("cases"), list):
        table["cases"] = [with_code(each, path.parent) if isinstance(each, dict) else each for each in cases]
    if faces and _all_shipped(given := data.get("faces")) and len(given) > 1:
        data["faces"] = [{key: each[key] for key in _OF_PEOPLE if key in each} | dict(faces) for each in given]
    elif faces and (faces.get("path") != RIGHT_THERE or _all_shipped(data.get("faces"))):
        data["faces"] = [dict(faces)]
    return with_code(data, path.parent), table


_OF_PEOPLE: Final = ("people", "domain", "labelled")
"""Fields of a table [[faces]] that hold for other faces in the place of its own, too."""


def _all_shipped(tables: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(tables, list) and all(isinstance(each, dict) and each.get("kind") == "shipped" for each in tables)


@dataclass(frozen=True)
class Plan:
    """An experiment's partition, and the source of its numbers: `generated` names the sets that are absent."""

    spec: RunSpec
    counts: Counts = field(repr=False)
    domains: Mapping[str, str] = field(repr=False)
    partition: Partition = field(repr=False)
    generated: tuple[str, ...] = ()

    def is_labelled(self, identity: str) -> bool:
        """True if a client that holds this person knows who it is."""
        return self.spec.is_labelled(self.domains[identity])

    def summary(self) -> dict[str, Any]:
        """Return the summary of a dry run: sizes of data and partition, method, rounds, what is missing."""
        return {
            "experiment": self.spec.name,
            "paper": self.spec.paper,
            "method": self.spec.trains_by,
            "rounds": self.spec.num_rounds,
            "found": {"identities": len(self.counts), "images": sum(self.counts.values())},
            "partition": self.partition.summary(),
            "generated": list(self.generated),
        }


def make_plan(spec: RunSpec, count: Callable[[FacesSource], Counts], generated: tuple[str, ...] = ()) -> Plan:
    """Return the experiment's partition of the identities that `count` finds in each source.

    Raises ConfigError for an identity in two sources, for too few clients, EmptyFolderError for too few people.
    """
    counts: dict[str, int] = {}
    domains: dict[str, str] = {}
    for source in spec.faces:
        found = count(source)
        if both := sorted(set(found) & set(counts)):
            raise ConfigError(
                f"identity {both[0]} is in two data sets; rename one, or leave it out by faces.people or faces.exclude"
            )
        counts.update(found)
        domains.update({name: source.domain or name.rpartition("_")[0] for name in found})
    if not counts:
        raise EmptyFolderError("the data sets hold nobody; look at faces.path")
    partition = build(spec.partition, counts, lambda name: domains[name], lambda name: spec.is_labelled(domains[name]))
    if spec.is_federated and len(partition.clients) < spec.task.cohort.min_reports:
        raise ConfigError(
            f"there are {len(partition.clients)} clients and task.cohort.min_reports is "
            f"{spec.task.cohort.min_reports}; add clients or lower it"
        )
    return Plan(spec, counts, domains, partition, generated)


def generated_counts(source: FacesSource, *, least: int = 1) -> dict[str, int]:
    """Return a made-up list of as many identities and images as the source should have, long-tailed as web sets are.

    Everybody has at least `least` images, as far as there are so many. Raises NotFoundError for a source that does not
    say how many it should have.
    """
    if source.identities < 1:
        raise NotFoundError(
            f"there are no faces at {source.path}; name their folder with --faces, or give faces.identities and "
            "faces.images for a dry run without them"
        )
    weights = np.exp(0.8 * np.random.default_rng(0).standard_normal(source.identities))
    least = min(least, source.images // source.identities)
    spare = source.images - least * source.identities
    exact = weights / weights.sum() * spare
    sizes = np.floor(exact).astype(int)
    for i in np.argsort(sizes - exact, kind="stable")[: spare - int(sizes.sum())]:
        sizes[i] += 1
    prefix = source.domain or Path(source.path).stem or "made-up"
    return {f"{prefix}_{i:06d}": int(size) + least for i, size in enumerate(sizes)}


def dry_plan(spec: RunSpec, root: Path) -> Plan:
    """Return the plan without reading an image; absent data sets are replaced by generated lists of their size.

    Where a long tail leaves too few people with `partition.min_images`, the lists give everybody that many.
    """
    from simulation.faces.sources import counts_of, is_there

    absent = tuple(source.path for source in spec.faces if not is_there(source, root))

    def plan(least: int) -> Plan:
        def count(source: FacesSource) -> Counts:
            return generated_counts(source, least=least) if source.path in absent else counts_of(source, root)

        return make_plan(spec, count, absent)

    try:
        return plan(1)
    except EmptyFolderError:
        if not absent:
            raise
        return plan(spec.partition.min_images)


def with_changes(
    spec: RunSpec,
    *,
    seed: int | None = None,
    rounds: int | None = None,
    engine: str | None = None,
    precision: str | None = None,
) -> RunSpec:
    """Return the experiment with another seed (of partition, task and a new model), rounds, engine or precision."""
    named = {name: value for name, value in (("engine", engine), ("precision", precision)) if value is not None}
    if named:
        spec = from_mapping(RunSpec, {**to_mapping(spec), **named})
    if seed is not None:
        if seed < 0:
            raise ConfigError(f"--seed is {seed}; it must not be negative")
        spec = replace(spec, partition=replace(spec.partition, seed=seed), task=replace(spec.task, seed=seed))
        if spec.model.source == "new":  # else runs that share their first weights would differ too little
            spec = replace(spec, model=replace(spec.model, seed=seed))
    return spec if rounds is None else replace(spec, task=replace(spec.task, rounds=rounds))


def differences(first: RunSpec, second: RunSpec) -> dict[str, tuple[str, str]]:
    """Return field by path -> its two values as JSON, or "not set", where two experiments differ; in order of names."""
    old, new = _fields(to_mapping(first)), _fields(to_mapping(second))
    return {
        name: (_value(old, name), _value(new, name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    }


def _fields(data: Any, where: str = "") -> dict[str, Any]:
    """Return path -> value of plain data, lists as they are."""
    if not isinstance(data, Mapping):
        return {where: data}
    inner = (_fields(value, f"{where}.{key}" if where else key) for key, value in data.items())
    return {name: value for each in inner for name, value in each.items()}


def _value(fields: Mapping[str, Any], name: str) -> str:
    return json.dumps(fields[name]) if name in fields else "not set"
