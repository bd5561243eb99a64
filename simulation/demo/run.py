"""The demo's steps, top to bottom: what an operator and ten people would do, with the same commands."""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import tomli_w
from rich.markup import escape
from rich.table import Table

from coordinator.commands import tasks
from device_sdk.runtimes import load_runtime
from mien.errors import (
    TABLE,
    AlreadyExistsError,
    EmptyFolderError,
    LateError,
    LowQualityError,
    MultipleFacesError,
    NoFaceError,
    UndefinedMetricError,
)
from mien.methods.base import Runtime
from mien.shell import cli
from mien.shell.files import make_folder, write_atomically
from mien.shell.lock import exclusive
from mien.specs import CohortSpec, TaskSpec, to_mapping
from simulation.datasets import LabelledCrops, People, read_people
from simulation.demo.measure import OwnSample, comparisons_of, equal_error, model_result, own_population
from simulation.demo.people import DemoPeople, people_from, synthetic_people
from simulation.demo.programs import Programs, free_ports
from simulation.models import Model, read_model
from simulation.pretrained import sface_path
from simulation.report.demo_page import DemoReport, OwnPopulation, PhoneCheck, Population, RoundCost, render_demo

DEFAULT_TASK: Final = Path(__file__).resolve().parents[1] / "experiments" / "demo" / "fedface.toml"
MARKER: Final = ".mien-demo"
TARGET_FMR: Final = 0.01
# `verify` answers with these exit codes: yes, no, and the three kinds of pictures that it does not take.
VERIFY_ANSWERS: Final = (0, 1, *(TABLE[cls].exit_code for cls in (NoFaceError, MultipleFacesError, LowQualityError)))


@dataclass(frozen=True)
class DemoOptions:
    """What a person may choose: see `mien-sim demo --help`."""

    out: Path
    faces: Path | None = None
    num_phones: int = 10
    rounds: int | None = None
    task: Path | None = None
    seed: int = 0


@dataclass(frozen=True)
class Stage:
    """Where the demo plays: folders, addresses, child processes, people, task."""

    options: DemoOptions
    folder: Path
    programs: Programs = field(repr=False)
    people: DemoPeople = field(repr=False)
    task: TaskSpec

    def home(self, name: str) -> str:
        """Return the state folder of a program."""
        return str(self.folder / name)

    def operator(self, *arguments: str) -> Any:
        """Return what an operator's command on the coordinator answers."""
        return self.programs.call("mien-coordinator", *arguments, "--home", self.home("coordinator"))

    def phone(self, name: str, *arguments: str, answers: Collection[int] = (0,)) -> Any:
        """Return what a command on a phone answers, with one of the exit codes `answers`."""
        return self.programs.call("mien-device", *arguments, "--home", self.home(f"phones/{name}"), answers=answers)


def run_demo(options: DemoOptions, *, as_json: bool = False) -> None:
    """Run the demo and leave `report.html` in `options.out`.

    However it ends, every child process has ended and the programs' state (keys, encrypted galleries) is gone; logs and
    report stay.
    """
    started = time.monotonic()
    task = read_task(options)
    people = (
        synthetic_people(options.num_phones)
        if options.faces is None
        else people_from(options.faces, options.num_phones, seed=options.seed)
    )
    with _ended_by_signals(), _state(options.out) as folder, Programs(options.out / "logs") as programs:
        stage = Stage(options, folder, programs, people, task)
        with _step("Start a registrar and a coordinator (mutual TLS on 127.0.0.1)"):
            start_servers(stage)
        with _step(f"Import and release the pretrained recogniser with {len(people.public)} public people"):
            before = release_pretrained(stage)
        with _step(f"{len(people.phones)} phones join by invite and enrol one person each"):
            join_and_enrol(stage)
        submitted = submit(stage)
        with _step(f"Train together: {task.rounds} rounds of {task.method}"):
            rounds = train(stage, submitted["task_id"])
        with _step("Release the trained model, with a threshold measured on the public people"):
            after = release_trained(stage, rounds[-1]["model_id"])
        with _step("One phone updates, verifies its owner and refuses a stranger"):
            phone = check_one_phone(stage)
        with _step(f"Measure on {len(people.test)} people whom no phone holds"):
            report = measure(stage, before, after, rounds, phone, submitted["discloses"], started)
    page = options.out / "report.html"
    write_atomically(page, render_demo(report).encode())
    conclude(report, page, as_json=as_json)


def read_task(options: DemoOptions) -> TaskSpec:
    """Return the demo's task, its cohort being all phones; where these are fewer than its floors, the floors follow."""
    task = tasks.read_task(options.task or DEFAULT_TASK)
    num_phones = options.num_phones
    return dataclasses.replace(
        task,
        rounds=task.rounds if options.rounds is None else options.rounds,
        cohort=CohortSpec(size=num_phones, min_reports=min(task.cohort.min_reports, num_phones)),
        privacy=dataclasses.replace(task.privacy, min_cohort=min(task.privacy.min_cohort, num_phones)),
    )


def start_servers(stage: Stage) -> None:
    """Make and start a registrar and a coordinator that trust each other, as their operators would."""
    join, admin, rounds = (f"127.0.0.1:{port}" for port in free_ports(3))
    registrar, coordinator = stage.home("registrar"), stage.home("coordinator")
    call = stage.programs.call
    call("mien-registrar", "init", "--home", registrar, "--address", join, "--listen", join,
         "--admin-address", admin, "--admin-listen", admin, "--coordinator-address", rounds)  # fmt: skip
    call("mien-coordinator", "init", "--home", coordinator, "--address", rounds, "--listen", rounds,
         "--registrar-ca", f"{registrar}/ca.pem", "--registrar-address", join,
         "--registrar-admin-address", admin)  # fmt: skip
    call("mien-registrar", "trust-coordinator", f"{coordinator}/ca.pem", "--home", registrar,
         "--csr", f"{coordinator}/registrar-operator.csr",
         "--out", f"{coordinator}/registrar-operator.pem")  # fmt: skip
    stage.programs.start("registrar", "mien-registrar", "serve", "--home", registrar)
    stage.programs.wait_for_port("registrar", join)
    stage.programs.start("coordinator", "mien-coordinator", "serve", "--home", coordinator)
    stage.programs.wait_for_port("coordinator", rounds)


def release_pretrained(stage: Stage) -> Model:
    """Import SFace with the public people, release it, and return it.

    No threshold is kept with it: phones would refuse their owners' pictures by it on enrolment, and for people of
    another kind than it was trained on it is too weak for that.
    """
    _link(stage.people.public, stage.folder / "public")
    shard = stage.folder / "public.safetensors"
    stage.programs.call(
        "mien-sim", "data", "pack", str(stage.folder / "public"), "--out", str(shard),
        "--licence", stage.people.terms, "--source", stage.people.dataset,
    )  # fmt: skip
    imported = stage.operator("model", "import", str(sface_path()), "--public", str(shard), "--release")
    return _exported(stage, imported["model_id"], "before")


def join_and_enrol(stage: Stage) -> None:
    """Invite, join and enrol every phone, as many at a time as there are cores; the first that fails ends it."""

    def one(name: str) -> None:
        invite = stage.operator("device", "invite", "--note", "demo phone")
        stage.phone(name, "join", invite["url"], "--keystore", "file")
        images = [str(path) for path in stage.people.enrolled(name)]
        stage.phone(name, "enroll", "owner", *images, "--consent")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            for done in as_completed([pool.submit(one, name) for name in stage.people.phones]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def submit(stage: Stage) -> Mapping[str, Any]:
    """Submit the task, print in the coordinator's own words what it shows the server, and return the answer."""
    file = stage.folder / "task.toml"
    file.write_text(tomli_w.dumps(to_mapping(stage.task)), encoding="utf-8")
    answer: Mapping[str, Any] = stage.operator("task", "submit", str(file))
    for sentence in answer["discloses"]:
        cli.ERR.print(f"    [yellow]![/] {escape(sentence)}", highlight=False, soft_wrap=True)
    return answer


def train(stage: Stage, task_id: str) -> list[Mapping[str, Any]]:
    """Let every phone take part until the task is over, and return the report of every attempt of a round.

    Raises UnreachableError when a phone ended by itself, LateError when the task did not end well.
    """
    agreed = [flag for lane in stage.task.privacy.reveals for flag in ("--allow-reveal", lane)]
    phones = {name: f"phone-{name}" for name in stage.people.phones}
    for name, program in phones.items():
        stage.programs.start(
            program, "mien-device", "participate", "--home", stage.home(f"phones/{name}"),
            "--min-cohort", str(stage.task.privacy.min_cohort), *agreed,
        )  # fmt: skip
    ended: dict[tuple[int, int], Mapping[str, Any]] = {}
    for event in stage.programs.lines(
        "mien-coordinator", "task", "watch", task_id, "--home", stage.home("coordinator")
    ):
        status, attempt = event["task"], event["round"]
        if attempt and attempt["stage"] in ("closed", "aborted"):
            key = attempt["round"], attempt["attempt"]
            if key not in ended:
                ended[key] = attempt
                _tell_round(attempt, status["rounds_total"])
        stage.programs.require_running(*phones.values())
        if status["state"] in ("paused", "failed", "cancelled"):
            raise LateError(f"the task is {status['state']}: {status['reason']}; see {stage.options.out / 'logs'}")
    stage.programs.stop(*phones.values())
    rounds = [ended[key] for key in sorted(ended)]
    if sum(attempt["stage"] == "closed" for attempt in rounds) != stage.task.rounds:
        raise LateError(f"the task ended before its {stage.task.rounds} rounds; see {stage.options.out / 'logs'}")
    return rounds


def release_trained(stage: Stage, model_id: str) -> Model:
    """Release the last round's model with thresholds measured on the public people, and return it."""
    stage.operator("model", "release", model_id)
    stage.operator("model", "evaluate", model_id, "--data", str(stage.folder / "public"), "--keep-thresholds")
    return _exported(stage, model_id, "after")


def check_one_phone(stage: Stage) -> PhoneCheck:
    """Return what the first phone decides of its owner's picture and of the next phone's owner's."""
    owner, stranger = list(stage.people.phones)[:2]
    stage.phone(owner, "update")
    mine, other = (_decided(stage, owner, stage.people.probes(whose)) for whose in (owner, stranger))
    return PhoneCheck(
        device=f"phone of {owner}",
        threshold=mine["threshold"],
        threshold_source=f"FMR {TARGET_FMR:g} on the {len(stage.people.public)} public people, for this model",
        owner_decision=mine["decision"],
        owner_score=mine["score"],
        owner_accepted=mine["decision"] == "match",
        stranger_decision=other["decision"],
        stranger_score=other["score"],
        stranger_accepted=other["decision"] == "match",
    )


def _decided(stage: Stage, owner: str, probes: list[Path]) -> Mapping[str, Any]:
    """Return what a phone decides of the first of these pictures that it takes."""
    refused = []
    for probe in probes:
        answer: Mapping[str, Any] = stage.phone(
            owner, "verify", "owner", str(probe), "--show-score", "--max-fmr", str(TARGET_FMR), answers=VERIFY_ANSWERS
        )
        if answer["decision"] in ("match", "unknown"):
            return answer
        refused.append(answer["message"])
    raise LowQualityError(f"the phone took none of the pictures to verify with: {'; '.join(refused)}")


def measure(
    stage: Stage,
    before: Model,
    after: Model,
    rounds: list[Mapping[str, Any]],
    phone: PhoneCheck,
    discloses: list[str],
    started: float,
) -> DemoReport:
    """Return the report: held-out people under every round's model, the released model's own people, and costs."""
    people, seed = stage.people, stage.options.seed
    test = read_people(people.test, people.pipeline(before.spec.input))
    # One runtime for all models: the frozen trunk's features are computed once.
    runtime = load_runtime(before.spec, before.layout)
    scores = {m.model_id: comparisons_of(runtime, m.theta, test) for m in (before, after)}
    num_fte = len(test.failures)
    own, skipped = _own_population(stage.options.faces, before, after)
    return DemoReport(
        method=stage.task.method,
        num_phones=len(people.phones),
        before=model_result("pretrained", before, scores[before.model_id], num_fte, seed=seed),
        after=model_result("trained together", after, scores[after.model_id], num_fte, seed=seed),
        rounds=tuple(_round_cost(stage, r, runtime, before, test) for r in rounds),
        populations=tuple(
            Population(role, people.dataset, len(group), sum(map(len, group.values())), people.terms)
            for role, group in (
                ("phones (enrolled, trained on)", people.phones),
                ("public people (in the bundle)", people.public),
                ("test people (held by nobody)", people.test),
            )
        ),
        privacy=tuple(discloses),
        reveals=stage.task.privacy.reveals,
        masked=False,
        phone=phone,
        reproduce=_command(),
        commit=_commit(),
        machine=f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=time.monotonic() - started,
        seed=seed,
        own_population=own,
        own_population_skipped=skipped,
        settings=tuple((f"Task: {key}", _in_words(value)) for key, value in to_mapping(stage.task).items()),
    )


def conclude(report: DemoReport, page: Path, *, as_json: bool) -> None:
    """Print what came of it."""
    before, after = (equal_error(r.comparisons) for r in (report.before, report.after))
    own = report.own_population
    result = {
        "eer_before": before,
        "eer_after": after,
        "mated": report.after.comparisons.num_mated,
        "non_mated": report.after.comparisons.num_non_mated,
        "fte": report.after.num_fte,
        "rounds": sum(r.outcome == "closed" for r in report.rounds),
        "phones": report.num_phones,
        "own_accuracy_before": None if own is None else own.accuracy_before,
        "own_accuracy_after": None if own is None else own.accuracy_after,
        "owner_accepted": report.phone.owner_accepted,
        "stranger_accepted": report.phone.stranger_accepted,
        "reveals": list(report.reveals),
        "masked": report.masked,
        "duration_s": round(report.duration_s, 1),
        "report": str(page),
    }

    def human() -> None:
        table = Table("measured", "before", "after", title="What training together changed")
        counts = f"{result['mated']} mated, {result['non_mated']} non-mated comparisons"
        table.add_row(f"EER on held-out people ({counts})", f"{before:.1%}", f"{after:.1%}")
        if own is None:
            table.add_row(f"own population: not measured, {report.own_population_skipped}", "–", "–")
        else:
            table.add_row(f"{own.dataset}: {own.protocol}", f"{own.accuracy_before:.2%}", f"{own.accuracy_after:.2%}")
        cli.OUT.print(table)
        cli.OUT.print(
            f"One phone: its owner is {report.phone.owner_decision}, a stranger {report.phone.stranger_decision}."
        )
        cli.OUT.print(f"Report with DET curves and costs: {page}", markup=False, soft_wrap=True)

    cli.emit(result, as_json=as_json, human=human)


def _round_cost(
    stage: Stage, attempt: Mapping[str, Any], runtime: Runtime, base: Model, test: LabelledCrops
) -> RoundCost:
    closed = attempt["stage"] == "closed"
    # Phones hold the first round's model since they enrolled. Every other round begins with a new one, of which they
    # fetch what training changed.
    num_fetched = attempt["num_selected"] if attempt["round"] > 1 and attempt["attempt"] == 1 else 0
    trained = base.layout.part(stage.task.trainable or base.spec.trainable or ("*",))
    eer = None
    if closed:
        model = _exported(stage, attempt["model_id"], f"round-{attempt['round']}")
        eer = equal_error(comparisons_of(runtime, model.theta, test))
    return RoundCost(
        number=attempt["round"],
        num_asked=attempt["num_selected"],
        num_reported=attempt["num_reports"],
        bytes_down=num_fetched * 4 * trained.size,
        bytes_up=attempt["upload_bytes"],
        duration_s=(attempt["ended_unix_ms"] - attempt["started_unix_ms"]) / 1000,
        eer=eer,
        outcome="closed" if closed else attempt["reason"],
    )


def _own_population(faces: Path | None, before: Model, after: Model) -> tuple[OwnPopulation | None, str]:
    """Return what training cost on LFW, or why that was not measured."""
    images = Path(os.environ.get("MIEN_DATA", "")) / "lfw" / "images"
    if "MIEN_DATA" not in os.environ or not images.is_dir():
        return None, "MIEN_DATA names no folder with lfw/images"
    if faces is not None and faces.resolve() == images.resolve():
        return None, "the phones hold people of LFW themselves"
    try:
        return own_population(OwnSample.read(images, before.spec.input), before, after), ""
    except (UndefinedMetricError, EmptyFolderError) as error:  # an incomplete LFW must not cost the report
        return None, error.message


def _exported(stage: Stage, model_id: str, name: str) -> Model:
    out = stage.folder / "models" / name
    out.parent.mkdir(exist_ok=True)
    stage.operator("model", "export", model_id, str(out))
    model = read_model(out)
    shutil.rmtree(out)
    return model


def _tell_round(attempt: Mapping[str, Any], total: int) -> None:
    seconds = (attempt["ended_unix_ms"] - attempt["started_unix_ms"]) / 1000
    loss = attempt["metrics"].get("loss_after")
    cli.ERR.print(
        f"    round {attempt['round']}/{total}: {attempt['stage']}, {attempt['num_reports']} phones, "
        f"{attempt['upload_bytes'] / 1e6:.1f} MB up, {seconds:.1f} s"
        + (f", loss {loss:.3f}" if loss is not None else "")
        + (f" ({attempt['reason']})" if attempt["reason"] else ""),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _link(people: People, folder: Path) -> None:
    """Show a group of people as a folder of folders, without copying a picture."""
    for name, files in people.items():
        (folder / name).mkdir(parents=True)
        for path in files:
            (folder / name / path.name).symlink_to(path.resolve())


@contextmanager
def _state(out: Path) -> Iterator[Path]:
    """An empty folder for the programs' state, removed afterwards; one demo at a time has it."""
    make_folder(out)
    with exclusive(out / ".lock", program="mien-sim demo", option="--out"):
        folder = _fresh_state(out)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _fresh_state(out: Path) -> Path:
    """Return an empty folder for the programs' state; only a folder that a demo made is ever emptied."""
    folder = out / "state"
    if folder.exists() or folder.is_symlink():
        if folder.is_symlink() or not (folder / MARKER).is_file():
            raise AlreadyExistsError(f"{folder} was not made by the demo; name another folder with --out")
        shutil.rmtree(folder)
    make_folder(folder)
    (folder / MARKER).touch()
    (folder / "phones").mkdir()
    return folder


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as an exception does, so that it cleans up after itself."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _step(title: str) -> Iterator[None]:
    """Say what begins, and how long it took."""
    started = time.monotonic()
    cli.ERR.print(f"[bold cyan]>[/] {escape(title)} …", highlight=False, soft_wrap=True)
    yield
    cli.ERR.print(f"    done in {time.monotonic() - started:.1f} s", style="dim", highlight=False)


def _in_words(value: object) -> str:
    """Return a setting as the report shows it: `size 10, min_reports 4`."""
    if isinstance(value, Mapping):
        inner = (
            (key, f"({_in_words(each)})" if isinstance(each, Mapping) else _in_words(each))
            for key, each in value.items()
        )
        return ", ".join(f"{key} {words}" for key, words in inner) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _command() -> str:
    return shlex.join(["mien-sim", *sys.argv[1:]])


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
