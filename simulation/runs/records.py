"""A run's folder: what was run, a line a round, the evaluation, and a sealed checkpoint to go on from.

`experiment.json` says what was run; `records.jsonl` has a header (what ran on what, on which machine) and one line a
round; `evaluation.json` and the trained model in `model/` come at the end, and until then there are `checkpoint.bin`
with `checkpoint.key`. What clients keep to themselves (class embeddings) is in the checkpoint only, encrypted. A model
that was pre-trained is in `pretrained/`.

Every line is on disk before the run goes on. A process that is killed while it writes leaves at most one line without
its end, which readers leave out and the next writer removes. Readers need a form, by which they tell records from those
that were changed or cut off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.store.sealing import MasterKey
from mien.errors import AlreadyExistsError, CorruptDataError, MienError, NotFoundError
from mien.methods.base import ServerState
from mien.protocol.tensors import pack_tensors, unpack_tensors
from mien.records import from_mapping, to_mapping
from mien.shell import provenance
from mien.shell.files import create_private, make_folder, read_limited, read_private, storage_errors, write_atomically
from mien.shell.keys import secret_bytes
from mien.shell.lock import is_taken, lock_file
from mien.shell.sealing import KEY_BYTES, Sealer
from simulation.engines.engine import Cohort, Step
from simulation.faces.partitions import MAX_SEED
from simulation.runs.spec import RunSpec

MAX_JSON_BYTES: Final = 16 << 20
MAX_CHECKPOINT_BYTES: Final = 8 << 30
FORMAT: Final = 1
MAX_JOURNAL_BYTES: Final = 256 << 20
LOCK: Final = "lock"
WAIT_S: Final = 10.0
"""Time that a writer waits: what a killed command has started ends a moment after it."""
_TICK_S: Final = 0.1
RUN: Final = "experiment.json"
"""The file by which the folder of a single run is known."""
REPORT: Final = "report.html"
TABLES: Final = "results.md"
"""The page and the tables that commands write beside their records."""
_CPU_INFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Header:
    """Basis of a run's figures: hashes of its settings and of its faces, the code's commit, command and machine."""

    experiment: str
    experiment_sha256: str
    data_sha256: str
    seed: int
    commit: str
    command: str
    machine: str
    started_at: str
    format: int = FORMAT

    @classmethod
    def now(cls, experiment: str, settings: Mapping[str, Any], data_sha256: str, seed: int) -> Header:
        """Return the header of a run that begins now, here."""
        return cls(
            experiment,
            settings_sha256(settings),
            data_sha256,
            seed,
            provenance.commit(),
            provenance.command("mien-sim"),
            machine(),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )


class Journal:
    """The file of a run's records: `records.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, header: Header) -> None:
        """Write the header, in the place of whatever there was."""
        write_atomically(self.path, _line({"kind": "header", **to_mapping(header)}))

    def header(self) -> Header:
        """Return the header; raises NotFoundError where there are no records, CorruptDataError for damaged ones."""
        first = self._lines()[0]
        if first.pop("kind") != "header" or first.get("format") != FORMAT:
            raise CorruptDataError(f"{self.path} does not begin with a header of format {FORMAT}; run it again")
        return from_mapping(Header, first)

    def rounds(self) -> list[dict[str, Any]]:
        """Return one record a round, in order; raises CorruptDataError where a round is there twice or missing."""
        return [_without_kind(line) for line in self._lines() if line["kind"] == "round"]

    def check(self, header: Header) -> None:
        """Raise AlreadyExistsError where `header` has other settings or other faces than the records that are there."""
        begun = self.header()
        for name, what in (("experiment_sha256", "settings"), ("data_sha256", "faces")):
            old, new = getattr(begun, name), getattr(header, name)
            if old != new:
                raise AlreadyExistsError(
                    f"{self.path} holds records of other {what} ({old[:12]}, now {new[:12]}), and they are not mixed; "
                    "name a new folder with --out"
                )

    def take_up(self, header: Header, last_round: int) -> None:
        """Go on after `last_round`: records of later rounds are removed, and who goes on is noted."""
        kept = [line for line in self._lines() if line["kind"] != "round" or line["round"] <= last_round]
        note = {"kind": "resumed", "after_round": last_round, **_whereabouts(header)}
        write_atomically(self.path, b"".join(map(_line, [*kept, note])))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one round's record to the end, on disk when this returns; raises DiskFullError for a full one."""
        with storage_errors(str(self.path)), self.path.open("ab") as file:
            file.write(_line({"kind": "round", **record}))
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            raise NotFoundError(f"{self.path.parent} holds no run; start one with mien-sim run")
        whole, _, _unfinished = read_limited(self.path, MAX_JOURNAL_BYTES, what=self.path.name).rpartition(b"\n")
        try:
            lines = [json.loads(line) for line in whole.split(b"\n")]
        except (ValueError, RecursionError) as error:
            raise CorruptDataError(f"{self.path} is damaged; run the experiment again into a new folder") from error
        if not all(isinstance(line, dict) and isinstance(line.get("kind"), str) for line in lines):
            raise CorruptDataError(f"{self.path} holds no records; run the experiment again into a new folder")
        numbers = [line.get("round") for line in lines if line["kind"] == "round"]
        if numbers != list(range(1, len(numbers) + 1)):
            raise CorruptDataError(
                f"{self.path} holds rounds twice or out of order, as if two processes had written it; remove "
                f"{self.path.parent} and run it again"
            )
        return lines


def num_rounds(path: Path) -> int:
    """Return how many rounds a file of records holds; 0 where there is none."""
    try:
        return path.read_bytes().count(b'"kind": "round"')
    except OSError:
        return 0


def settings_sha256(settings: Mapping[str, Any]) -> str:
    """Return the digest of settings given as plain data."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def machine() -> str:
    """Return this machine in words, without its name: system, processor, cores that this process may use, versions."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (
        f"{platform.system()} {platform.machine()}, {_processor()}, {cores} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def _processor() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown processor")


def _whereabouts(header: Header) -> dict[str, str]:
    return {name: getattr(header, name) for name in ("commit", "command", "machine", "started_at")}


def _without_kind(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "kind"}


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, sort_keys=True, allow_nan=False) + "\n").encode()


# The form of records.

# A form is `int`, `float` (a finite number) or `str`, a list with the form of its items, or a mapping from names to
# forms: "name?" may be left out, "*" are all names, further ones are nobody's business.
_LARGEST: Final = MAX_SEED  # larger whole numbers than seeds are in no record
_CURVE: Final = {"thresholds": [float], "num_false_matches": [int], "num_false_non_matches": [int]}
_BAND: Final = {"fmr?": [float], "low?": [float], "high?": [float]}
_POINT: Final = {"target_fmr": float, "not_measurable?": str, "tar?": float, "fmr?": float, "threshold?": float}
_MEASURED: Final = {
    **dict.fromkeys(("eer", "eer_low", "eer_high"), float),
    **dict.fromkeys(("num_mated", "num_non_mated"), int),
    "model_id": str,
    "points": [_POINT],
    "curve": _CURVE,
    "band?": _BAND,
}
_PRIVACY: Final = {
    **dict.fromkeys(("epsilon", "delta", "noise_multiplier", "l2_clip"), float),
    "mechanism": str,
    "num_sums": int,
    "num_rounds": int,
}
_EVALUATION: Final = {
    **dict.fromkeys(("rounds", "test_people", "seed"), int),
    **dict.fromkeys(("commit", "command"), str),
    "partition": {"clients": int, "*": int},
    "failures": {"*": int},
    "before": _MEASURED,
    "after": _MEASURED,
    "pretrained?": _MEASURED,
    "personal?": {"model": str, "clients": int, "own_models": int, "figures": {"*": float}, "left_out?": {"*": int}},
    "angles?": {"edges_deg?": [float], "counts?": [int], "classes?": int},
    "map?": {"kind?": str, "people?": [int], "points?": [[float]]},
    "privacy?": _PRIVACY,
    "run": {"cpu_s": {"*": float}, "wall_s": {"*": float}, "machine": str, "commit": str, "data_sha256": str},
}
_ROUND: Final = {
    "round": int,
    "clients": int,
    "weight": float,
    "workers?": [str],
    **dict.fromkeys(("loss_before?", "loss_after?", "eer?", "staleness?", "cpu_s?", "wall_s?"), float),
}


def check_rounds(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raise CorruptDataError naming the file and the field where a round's record is of another form."""
    for record in records:
        _refuse(_faults(record, _ROUND, f"round {record.get('round')}"), path)


def check_evaluation(evaluation: Mapping[str, Any], path: Path) -> None:
    """Raise CorruptDataError naming the file and the field where a run's evaluation is of another form."""
    _refuse(_faults(evaluation, _EVALUATION, ""), path)
    _refuse(_contradictions(evaluation), path)


def _refuse(faults: Iterator[str], path: Path) -> None:
    if (fault := next(faults, None)) is not None:
        raise CorruptDataError(f"{path} is damaged ({fault}); run the experiment again into a new folder")


def _faults(value: Any, form: Any, where: str) -> Iterator[str]:
    """Yield the fields of a value that are missing or of another form."""
    if isinstance(form, list):
        if not isinstance(value, list):
            yield where
        else:
            for index, item in enumerate(value):
                yield from _faults(item, form[0], f"{where}[{index}]")
    elif isinstance(form, dict):
        yield from _faults_of_fields(value, form, where)
    elif form is str:
        if not isinstance(value, str):
            yield where
    elif not _is_number(value) or (form is int and not isinstance(value, int)):
        yield where


def _faults_of_fields(value: Any, form: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield where or "no record"
        return
    named = {name.rstrip("?"): name for name in form if name != "*"}
    for name, written in named.items():
        inner = f"{where}.{name}" if where else name
        if name in value:
            yield from _faults(value[name], form[written], inner)
        elif not written.endswith("?"):
            yield inner
    if "*" in form:
        for name in value.keys() - named.keys():
            yield from _faults(value[name], form["*"], f"{where}.{name}")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _LARGEST if isinstance(value, int) else math.isfinite(value)


def _contradictions(evaluation: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of an evaluation whose parts do not go together."""
    before, after = evaluation["before"], evaluation["after"]
    for name, measured in (("before", before), ("after", after)):
        yield from (f"{name}.{field}" for field in _contradictions_of_model(measured))
    if [p["target_fmr"] for p in before["points"]] != [p["target_fmr"] for p in after["points"]]:
        yield "after.points"
    angles, flat = evaluation.get("angles"), evaluation.get("map")
    if angles and not (angles.keys() >= {"edges_deg", "counts", "classes"} and _are_bins(angles)):
        yield "angles"
    if flat and not (flat.keys() >= {"kind", "people", "points"} and _is_map(flat)):
        yield "map"


def _contradictions_of_model(measured: Mapping[str, Any]) -> Iterator[str]:
    curve, mated, non_mated = measured["curve"], measured["num_mated"], measured["num_non_mated"]
    if min(mated, non_mated) < 1:
        yield "num_mated" if mated < 1 else "num_non_mated"
    if not curve["thresholds"] or len({len(curve[name]) for name in _CURVE}) != 1:
        yield "curve"
    for name, most in (("num_false_matches", non_mated), ("num_false_non_matches", mated)):
        if any(not 0 <= number <= most for number in curve[name]):
            yield f"curve.{name}"
    band = measured.get("band") or {}
    if band and (len(band) < len(_BAND) or len({len(side) for side in band.values()}) != 1 or not _are_shares(band)):
        yield "band"
    for point in measured["points"]:
        if not 0 < point["target_fmr"] <= 1 or not point.keys() & {"not_measurable", "tar"}:
            yield "points"
        if "not_measurable" not in point and not point.keys() >= {"fmr", "threshold"}:
            yield "points"


def _are_shares(band: Mapping[str, Sequence[float]]) -> bool:
    return all(0 <= share <= 1 for side in band.values() for share in side)


def _are_bins(angles: Mapping[str, Any]) -> bool:
    return len(angles["edges_deg"]) == len(angles["counts"]) + 1 and min(angles["counts"], default=0) >= 0


def _is_map(flat: Mapping[str, Any]) -> bool:
    pairs = all(len(point) == 2 for point in flat["points"])
    return pairs and len(flat["people"]) == len(flat["points"]) and flat["kind"] in ("pca", "tsne")


# Folders that `--out` names: no command writes over another's records, and one process at a time writes them. It holds
# a lock, which the kernel frees when the process ends, however it ends.

KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        RUN: "a run of mien-sim run",
        "sweep.json": "a sweep",
        "study.json": "a reproduction",
        "phones.json": "the records of mien-sim phones",
        "summary.json": "the records of mien-sim fleet",
        "leakage.md": "a study of what the server can learn",
    }
)
"""The file by which the folder of each command is known."""


def refuse_others(folder: Path, *, but: str = "") -> None:
    """Raise AlreadyExistsError for a folder that holds a command's records, except those known by the file `but`."""
    for name, what in KNOWN.items():
        if name != but and (folder / name).exists():
            raise AlreadyExistsError(f"{folder} holds {what}, which stay; name another folder with --out")


@contextlib.contextmanager
def only_writer(folder: Path, *, wait_s: float | None = None) -> Iterator[None]:
    """Be the only process that writes into an existing folder while the block runs.

    Waits `wait_s` seconds (default: `WAIT_S`) for another one; raises AlreadyExistsError, with its number, if it stays.
    """
    end = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
    with lock_file(folder / LOCK) as handle:
        while not is_taken(handle):
            if time.monotonic() >= end:
                who = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "another one"
                raise AlreadyExistsError(
                    f"{folder} is being written by process {who}; wait for it, stop it, or name a new folder with --out"
                )
            time.sleep(_TICK_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield


# The folder.


class RunFolder:
    """A run's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder / "records.jsonl")
        self.experiment = folder / RUN
        self.evaluation = folder / "evaluation.json"
        self.model = folder / "model"
        self.pretrained = folder / "pretrained"
        self._checkpoint = folder / "checkpoint.bin"
        self._key = folder / "checkpoint.key"

    def start(self, spec: RunSpec, header: Header) -> None:
        """Make the folder of a new run; raises AlreadyExistsError for one that holds records.

        Raises KeyStoreError where a model that an earlier run was pre-trained to cannot be removed.
        """
        self.check_free()
        make_folder(self.folder)
        if self.pretrained.exists():  # of a run that never came to a round, and may be another
            with storage_errors(str(self.pretrained)):
                shutil.rmtree(self.pretrained)
        self.journal.begin(header)
        write_atomically(self.experiment, to_json(to_mapping(spec)))

    def check_free(self) -> None:
        """Raise AlreadyExistsError for a folder that holds records; a run that never came to a round has none."""
        refuse_others(self.folder, but=self.experiment.name)
        if self.experiment.exists() and not self._is_blank():
            raise AlreadyExistsError(
                f"{self.folder} holds a run already; go on with it by --resume, or name a new folder with --out"
            )

    def _is_blank(self) -> bool:
        if self.evaluation.exists() or self._checkpoint.exists() or self.model.exists():
            return False
        try:
            return bool(self.journal.header()) and not self.journal.rounds()
        except MienError:  # damaged or not ours: to be looked at, not to be lost
            return False

    def spec(self) -> RunSpec:
        """Return the run's specification; raises NotFoundError where there is no run."""
        if not self.experiment.is_file():
            raise NotFoundError(f"{self.folder} holds no run; start one with mien-sim run")
        return from_mapping(RunSpec, read_json(self.experiment))

    def records(self) -> list[dict[str, Any]]:
        """Return one record a round, in order; raises CorruptDataError for records of another form."""
        records = self.journal.rounds()
        check_rounds(records, self.journal.path)
        return records

    def result(self) -> dict[str, Any] | None:
        """Return the evaluation, None before the end; raises CorruptDataError for one of another form."""
        if not self.evaluation.is_file():
            return None
        evaluation = read_json(self.evaluation)
        check_evaluation(evaluation, self.evaluation)
        return evaluation

    def save(self, step: Step, record: Mapping[str, Any]) -> None:
        """Write a round's record, then the sealed checkpoint to go on from."""
        self.journal.append(record)
        if not self._key.exists():
            create_private(self._key, secret_bytes(KEY_BYTES))
        tensors: dict[str, NDArray[Any]] = {"theta": step.state.theta, "round": np.array([step.record.round])}
        _put(tensors, "array", {"": step.state.arrays})
        _put(tensors, "revealed", step.state.revealed)
        _put(tensors, "private", step.cohort.private)
        _put(tensors, "validator", step.cohort.validator_private)
        sealed = self._sealer().seal(pack_tensors(tensors), place=b"checkpoint")
        write_atomically(self._checkpoint, sealed, private=True)

    def load(self, cohort: Cohort) -> tuple[ServerState, Cohort, int] | None:
        """Return state, cohort and number of the last finished round; None where no round was finished.

        Raises CorruptDataError for a damaged checkpoint.
        """
        if not self._checkpoint.is_file():
            return None
        sealed = read_limited(self._checkpoint, MAX_CHECKPOINT_BYTES, what="checkpoint")
        try:
            tensors = unpack_tensors(self._sealer().open(sealed, place=b"checkpoint"), what="checkpoint")
        except CorruptDataError as error:
            raise CorruptDataError(
                f"{self._checkpoint} is damaged or its key is another one; begin again in a new folder with --out"
            ) from error
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
        return MasterKey(read_private(self._key, what="checkpoint key")).sealer("checkpoint")


def read_json(path: Path) -> dict[str, Any]:
    """Return a record; raises CorruptDataError for a file that is none."""
    try:
        data = json.loads(read_limited(path, MAX_JSON_BYTES, what=path.name))
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"{path} is damaged; run the experiment again into a new folder") from error
    if not isinstance(data, dict):
        raise CorruptDataError(f"{path} is no record; run the experiment again into a new folder")
    return data


def to_json(data: Mapping[str, Any]) -> bytes:
    """Return a record as its file holds it."""
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
