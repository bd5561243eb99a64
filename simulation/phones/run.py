"""`mien-sim phones`: start processes of emulated phones against a coordinator, and report what they saw."""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w
from rich.table import Table

from coordinator.commands import tasks
from mien.errors import ConfigError, EmptyFolderError, InviteError, MienError, NotFoundError
from mien.format import several
from mien.records import from_mapping, to_mapping
from mien.shell import cli
from mien.shell.files import create_private, write_atomically
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.demo.programs import Programs
from simulation.demo.servers import COORDINATOR, OPERATOR, make_invites, start_servers
from simulation.demo.stage import ended_by_signals, state_folder, step
from simulation.faces.models import Model, write_model
from simulation.phones.fleet import FleetOptions
from simulation.phones.notes import ProcessNotes, attempts, summary
from simulation.phones.usage import peak_bytes
from simulation.phones.worker import WorkerPlan
from simulation.runs.records import refuse_others

RECORDS: Final = "records.jsonl"
FIGURES: Final = "phones.json"
GATHER_S: Final = 5.0
GATHER_EACH_S: Final = 0.05
"""A local round begins with the phones that are there after so long, and so much longer for each phone."""
FEWEST: Final = 3
MOST_A_PROCESS: Final = 1000


@dataclass(frozen=True)
class PhonesOptions:
    """A person's options: see `mien-sim phones --help`."""

    out: Path
    count: int
    processes: int
    fleet: FleetOptions
    local: bool = False
    invites: Path | None = None
    operator: Path | None = None
    population: str = "default"
    task: Path | None = None
    model: Path | None = None
    faces: Path | None = None
    images: int = 4

    def __post_init__(self) -> None:
        if sum((self.local, self.invites is not None, self.operator is not None)) != 1:
            raise ConfigError("name one of --local, --invites FILE and --operator FOLDER: where the phones come from")
        if not self.local and (self.task or self.model):
            raise ConfigError("--task and --model go with --local; another coordinator has its own")
        if not 1 <= self.processes <= self.count <= MOST_A_PROCESS * self.processes:
            raise ConfigError(f"--count must be at least --processes, and at most {MOST_A_PROCESS} for each of them")
        if self.local and self.count < FEWEST:
            raise ConfigError(f"--count is {self.count}; fewer than {FEWEST} phones cannot hide one another in a sum")
        if self.images < 1:
            raise ConfigError("--images must be at least 1")


def run_phones(options: PhonesOptions, *, as_json: bool) -> bool:
    """Run the phones and report; tells whether as many rounds closed as were asked for.

    However it ends, every child process has ended, and the phones' keys and all state are gone; logs and records stay.
    Where it is killed that takes some seconds.
    Raises AlreadyExistsError for a folder that holds records, of phones or of another command.
    """
    program = "mien-sim phones"
    task = task_for(options) if options.local else None  # what can never work is refused before anything starts
    refuse_others(options.out)
    with (
        ended_by_signals(),
        state_folder(options.out, program) as folder,
        Programs(options.out / "logs", state=folder) as programs,
    ):
        if options.local:
            with step("Start a registrar and a coordinator (mutual TLS on 127.0.0.1)"):
                start_servers(folder, programs)
                release(folder, programs, options.model)
        invites = invites_for(options, folder)
        plans = plans_for(options, folder, invites)
        with _running(programs, folder, plans) as said:
            with step(f"{len(invites)} phones in {_processes(len(plans))} make keys and join"):
                _until_joined(said, len(plans))
            if task is not None:
                submit(folder, programs, task)
            with step("Rounds"):
                notes = _until_ended(said, len(plans))
        found = summary(notes)
        if options.local:
            process = programs.process(COORDINATOR)
            found["coordinator_peak_mb"] = round(peak_bytes(process.pid) / 1e6, 1)
    _write(options.out, notes, found)
    cli.emit(found, as_json=as_json, human=lambda: _print(found, options))
    return not why_too_few(found["rounds_closed"], options.fleet)


def release(folder: Path, programs: Programs, model: Path | None) -> None:
    """Give the local coordinator a model: the one in `model`, or a MobileFaceNet of random weights."""
    source = model or folder / "model"
    if model is None:
        write_model(_random_model(), source)
    programs.call("mien-coordinator", "model", "import", str(source), "--release", "--home", _home(folder))


def _random_model() -> Model:
    from simulation.runs.run import model_of
    from simulation.runs.spec import ModelSource

    made = model_of(ModelSource("new", backbone="mobilefacenet_folded", dim=128), Path())
    return dataclasses.replace(made, spec=dataclasses.replace(made.spec, trainable=("embedding.*",)))


def task_for(options: PhonesOptions) -> TaskSpec:
    """Return the local task: the file's, or FedAvg on the last layer under secure aggregation; all phones are asked.

    Raises ConfigError for a file's task that so few phones can never close a round of.
    """
    count, rounds = options.count, options.fleet.rounds or 1
    if options.task is not None:
        task = dataclasses.replace(tasks.read_task(options.task), rounds=rounds)
        if task.cohort.min_reports > count:
            raise ConfigError(
                f"--count is {count}, and cohort.min_reports of {options.task.name} is {task.cohort.min_reports}; "
                "raise the one, or lower the other"
            )
        return task
    stage_s = 30.0 + 0.3 * count
    return TaskSpec(
        "phones",
        method="fedavg",
        rounds=rounds,
        cohort=CohortSpec(size=count, min_reports=max(FEWEST, (count + 1) // 2)),
        deadlines=DeadlineSpec(
            120.0,
            60.0 + count,
            keys_s=stage_s,
            shares_s=stage_s,
            upload_s=60.0 + count,
            consistency_s=stage_s,
            unmask_s=stage_s,
            selecting_soft_s=GATHER_S + GATHER_EACH_S * count,
        ),
        local=LocalSpec(lr=0.02, steps=2, batch_size=4),
        privacy=PrivacySpec(min_cohort=max(FEWEST, min(16, count // 2))),
        options={"loss": "positive"},
    )


def submit(folder: Path, programs: Programs, task: TaskSpec) -> None:
    """Submit the local task."""
    file = folder / "task.toml"
    file.write_text(tomli_w.dumps(to_mapping(task)), encoding="utf-8")
    programs.call("mien-coordinator", "task", "submit", str(file), "--home", _home(folder))


def invites_for(options: PhonesOptions, folder: Path) -> list[str]:
    """Return an invite a phone: those of the file, or new ones of the operator whose folder it is."""
    if options.invites is not None:
        return read_invites(options.invites, options.count)
    operator = folder / OPERATOR if options.operator is None else options.operator
    return make_invites(operator, options.count, note="emulated phone", population=options.population)


def read_invites(path: Path, count: int) -> list[str]:
    """Return the first `count` invites of a file, one a line; raises EmptyFolderError where there are fewer."""
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; write one invite a line into it")
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    invites = [line for line in lines if line]
    if len(invites) < count:
        raise EmptyFolderError(f"{path} holds {len(invites)} invites for {count} phones; each phone needs one")
    return invites[:count]


def plans_for(options: PhonesOptions, folder: Path, invites: Sequence[str]) -> list[WorkerPlan]:
    """Return the plan of each process, phones divided evenly."""
    plans, first = [], 0
    for number in range(options.processes):
        share = len(invites) // options.processes + (number < len(invites) % options.processes)
        plans.append(
            WorkerPlan(
                tuple(invites[first : first + share]),
                str(folder / f"models-{number}"),
                options.fleet,
                str(options.faces.resolve()) if options.faces else "",
                first,
                options.images,
            )
        )
        first += share
    return plans


_Said = queue.Queue["Mapping[str, Any] | MienError"]


@contextmanager
def _running(programs: Programs, folder: Path, plans: Sequence[WorkerPlan]) -> Iterator[_Said]:
    """Run a process a plan; what they print arrives in the queue, and the error of one that fails."""
    said: _Said = queue.Queue()

    def listen(path: Path) -> None:
        try:
            for line in programs.lines("mien-sim", "phones-worker", str(path), called="phones"):
                said.put(line)
        except MienError as error:
            said.put(error)

    threads = []
    for number, plan in enumerate(plans):
        path = folder / f"plan-{number}.json"
        create_private(path, json.dumps(to_mapping(plan)).encode())
        threads.append(threading.Thread(target=listen, args=(path,), daemon=True))
        threads[-1].start()
    try:
        yield said
    finally:
        programs.stop_others(COORDINATOR, "registrar")
        for thread in threads:
            thread.join()


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _until_joined(said: _Said, processes: int) -> None:
    joined = 0
    try:
        while joined < processes:
            joined += "joined" in _next(said)
    except InviteError as error:
        raise InviteError(
            f"{error.message}; an invite makes one phone, once: --operator FOLDER in place of --invites makes new ones "
            "(of a quick start in fleet: --operator fleet/operator)"
        ) from error


def _until_ended(said: _Said, processes: int) -> list[ProcessNotes]:
    notes: list[ProcessNotes] = []
    closed = 0
    while len(notes) < processes:
        line = _next(said)
        if line.get("closed", 0) > closed:
            closed = line["closed"]
            cli.ERR.print(f"    round {closed} closed", style="dim", highlight=False)
        if "notes" in line:
            notes.append(from_mapping(ProcessNotes, line["notes"]))
            for code, message in line["errors"].items():
                cli.warn(f"a phone gave up ({code}): {message}")
    return notes


def _next(said: _Said) -> Mapping[str, Any]:
    line = said.get()
    if isinstance(line, MienError):
        raise line
    return line


def _write(out: Path, notes: Sequence[ProcessNotes], found: Mapping[str, Any]) -> None:
    lines = [json.dumps(each.record(), sort_keys=True) for each in attempts(notes)]
    write_atomically(out / RECORDS, "".join(f"{line}\n" for line in lines).encode())
    write_atomically(out / FIGURES, (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())


def why_too_few(num_closed: int, options: FleetOptions) -> str:
    """Return why the phones stopped before all rounds closed, and what to do; empty where they did not."""
    if num_closed >= max(1, options.rounds):
        return ""
    rounds = several(options.rounds or num_closed, "round")
    wanted = f"{num_closed} of {rounds}" if options.rounds else rounds
    return (
        f"the phones stopped after {wanted}: nothing of one was heard for {options.idle_s:g} s. "
        "Where training or gathering takes longer give a longer --idle; what a coordinator waits for, its "
        "`mien-coordinator task watch` says"
    )


def _print(found: Mapping[str, Any], options: PhonesOptions) -> None:
    table = Table("what", "value")
    table.add_row("phones, processes", f"{found['phones']}, {found['processes']}")
    table.add_row("rounds closed, aborted", f"{found['rounds_closed']}, {found['rounds_aborted']}")
    table.add_row("rounds a minute", _number(found["rounds_per_minute"]))
    table.add_row("uploads", f"{found['uploads']}, {found['uploaded_bytes'] / 1e6:.1f} MB")
    table.add_row("upload MB/s", _number(found["upload_mb_s"]))
    for name, took_s in found["stage_p50_s"].items():
        table.add_row(f"{name}, median", f"{took_s:.2f} s")
    for name, figures in found["calls"].items():
        table.add_row(f"{name}, p50 / p99", f"{figures['p50_ms']:.1f} / {figures['p99_ms']:.1f} ms")
    for name, count in found["lost_at"].items():
        table.add_row(f"vanished at {name}", str(count))
    for code, count in found["not_counted"].items():
        table.add_row(f"not counted: {code}", str(count))
    table.add_row("CPU of a phone and round", f"{_number(found['cpu_ms_per_phone_and_round'])} ms")
    table.add_row("memory of a phone", f"{found['memory_mb_per_phone']:.2f} MB")
    if "coordinator_peak_mb" in found:
        table.add_row("coordinator, most memory", f"{found['coordinator_peak_mb']:.0f} MB")
    cli.OUT.print(table)
    cli.OUT.print(str(options.out / RECORDS), markup=False, highlight=False, soft_wrap=True)
    if why := why_too_few(found["rounds_closed"], options.fleet):
        cli.warn(why)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _home(folder: Path) -> str:
    return str(folder / COORDINATOR)
