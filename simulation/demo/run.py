"""The demo's steps, top to bottom: what an operator does with Mien's programs, and phones with its package."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tomli_w
from rich.markup import escape

from coordinator.commands import tasks
from coordinator.release.signing import read_key, sign_folder
from device_sdk.models.packaged import sface_path
from mien.errors import TABLE, ConfigError, LateError, LowQualityError, MultipleFacesError, NoFaceError
from mien.format import several
from mien.methods import METHODS
from mien.methods.base import Property
from mien.shell import cli
from mien.shell.clock import WallClock
from mien.shell.files import write_atomically
from mien.specs import CohortSpec, TaskSpec, to_mapping
from simulation.demo.outcome import Bench, Faces, conclude, measure
from simulation.demo.people import DemoPeople, people_from, synthetic_people
from simulation.demo.phone import PhonePlan
from simulation.demo.programs import Programs
from simulation.demo.servers import COORDINATOR, OPERATOR, RELEASE_KEY, make_invites, start_servers
from simulation.demo.stage import DemoOptions, Stage, ended_by_signals, state_folder, step
from simulation.faces.datasets import People
from simulation.faces.models import Model, read_model
from simulation.pages.demo_page import PhoneCheck, render_demo

DEFAULT_TASK: Final = Path(__file__).resolve().parents[1] / "papers" / "demo" / "statistics.toml"
RUNTIME: Final = "onnxruntime"
"""What phones run: torch alone takes longer to load than a phone's part in the round takes."""
PEOPLE_PER_PHONE: Final = 2
TARGET_FMR: Final = 0.01
COARSE_FMR: Final = 0.1
"""FMR where the public people are too few to measure the other (30 false matches have to be expected), or of another
kind: on the phones' own kind a threshold that was measured on them is far stricter. The report says by how much."""
# `verify` answers with these exit codes: yes, no, and the three kinds of pictures that it does not take.
VERIFY_ANSWERS: Final = (0, 1, *(TABLE[cls].exit_code for cls in (NoFaceError, MultipleFacesError, LowQualityError)))


def run_demo(options: DemoOptions, *, as_json: bool = False) -> None:
    """Run the demo and leave `report.html` in `options.out`.

    However it ends, every child process has ended and the programs' state (keys, encrypted galleries) is gone; logs and
    report stay. Where it is killed that takes some seconds. With `options.keep` a demo that ends well leaves the state,
    and says how to go on with it.
    """
    started = time.monotonic()
    task = read_task(options)
    people = people_of(options, task)
    with (
        one_thread_beside() as (beside, is_over),
        ended_by_signals(),
        state_folder(options.out, keep=options.keep) as folder,
        Programs(options.out / "logs", state=folder) as programs,
    ):
        stage = Stage(options, folder, programs, people, task)
        shard = beside.submit(pack_public, stage)
        faces = beside.submit(Faces.read, stage, is_over)
        with step("Start a registrar and a coordinator (mutual TLS on 127.0.0.1)"):
            start_servers(folder, programs, signed=True)
        with step(f"Invite {len(people.phones)} phones, which start and join on their own"):
            start_phones(stage)
        with step(f"Import the pretrained recogniser with {len(people.public)} public people, sign and release it"):
            before = release_pretrained(stage, shard.result())
        # In the one thread the pictures are read before this begins.
        bench = beside.submit(lambda: Bench.of(stage, faces.result(), before, bundle_of(stage, "before")))
        submitted = submit(stage)
        with step(
            f"{len(people.owners)} people enrol on their phones, which take part: {task.method}, {_rounds(task)}"
        ):
            rounds = take_part(stage, submitted["task_id"])
        with step("Sign and release the new model, with a threshold measured on the public people"):
            after = release_adapted(stage, rounds[-1]["model_id"])
        with step("One phone updates, verifies its owner and refuses a stranger"):
            phone = check_one_phone(stage, target_fmr(after, people))
        with step(f"Measure on {len(people.test)} people whom no phone holds"):
            report = measure(stage, bench.result(), before, after, rounds, phone, submitted["discloses"], started)
    page = options.out / "report.html"
    write_atomically(page, render_demo(report).encode())
    conclude(report, page, as_json=as_json)
    if options.keep and not as_json:
        cli.tell(how_to_go_on(folder, next(iter(people.phones))))


def how_to_go_on(folder: Path, phone: str) -> str:
    """Return the commands that start the fleet in a kept folder again, and have one of its phones answer."""
    return "\n".join(
        (
            "The fleet stays. Start it again, each in a terminal of its own:",
            f"  mien-registrar serve --home {folder / 'registrar'}",
            f"  mien-coordinator serve --home {folder / COORDINATOR}",
            "Then, for example:",
            f"  mien-coordinator model list --home {folder / COORDINATOR}",
            f"  mien-coordinator device invite --home {folder / COORDINATOR} --operator {folder / OPERATOR}",
            f"  mien-device status --home {folder / 'phones' / phone}",
            f"{folder} holds keys and encrypted galleries: remove it when you are done.",
        )
    )


@contextmanager
def one_thread_beside() -> Iterator[tuple[ThreadPoolExecutor, Callable[[], bool]]]:
    """A thread for work of the demo's own beside the programs', and what tells that work that the demo is over."""
    over = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as beside:
        try:
            yield beside, over.is_set
        finally:
            over.set()
            beside.shutdown(wait=False, cancel_futures=True)


def _rounds(task: TaskSpec) -> str:
    return several(task.rounds, "round")


def read_task(options: DemoOptions) -> TaskSpec:
    """Return the demo's task, its cohort being all phones; where these are fewer than its floors, the floors follow.

    Raises ConfigError for more rounds than the task's method has.
    """
    task = tasks.read_task(options.task or DEFAULT_TASK)
    num_phones = options.num_phones
    if options.rounds not in (None, 1) and Property.FORWARD_ONLY in METHODS[task.method].properties:
        raise ConfigError(f"--rounds is {options.rounds}, and {task.method} sums once: leave it out, or name a --task")
    return dataclasses.replace(
        task,
        rounds=task.rounds if options.rounds is None else options.rounds,
        cohort=CohortSpec(size=num_phones, min_reports=min(task.cohort.min_reports, num_phones)),
        privacy=dataclasses.replace(task.privacy, min_cohort=min(task.privacy.min_cohort, num_phones)),
    )


def people_of(options: DemoOptions, task: TaskSpec) -> DemoPeople:
    """Return the demo's people, several on a phone where the task's method takes them."""
    per_phone = PEOPLE_PER_PHONE if Property.SEVERAL_PEOPLE in METHODS[task.method].properties else 1
    if options.faces is None:
        return synthetic_people(options.num_phones, per_phone)
    return people_from(options.faces, options.num_phones, per_phone, seed=options.seed)


def bundle_of(stage: Stage, name: str) -> Path:
    """Return the folder in which a model is signed."""
    return stage.folder / "models" / name


def pack_public(stage: Stage) -> Path:
    """Return the file of the public people's crops that goes with the released model."""
    _link(stage.people.public, stage.folder / "public")
    shard = stage.folder / "public.safetensors"
    stage.programs.call(
        "mien-sim", "data", "pack", str(stage.folder / "public"), "--out", str(shard),
        "--licence", stage.people.terms, "--source", stage.people.dataset,
    )  # fmt: skip
    return shard


def start_phones(stage: Stage) -> None:
    """Invite all phones and start them: each joins, waits for a release, enrols its people and takes part."""
    options = {
        "keystore": "file",
        "runtime": RUNTIME,
        "participation.min_cohort": stage.task.privacy.min_cohort,
        "participation.allow_reveal": stage.task.privacy.reveals,
        "participation.allow_plain_sums": not stage.task.privacy.is_masked,
    }
    phones = stage.people.phones
    invites = make_invites(stage.folder / OPERATOR, len(phones), note="demo phone")
    for (name, people), invite in zip(phones.items(), invites, strict=True):
        plan = stage.folder / "phones" / f"{name}.json"
        pictures = {person: [str(path) for path in stage.people.enrolled(person)] for person in people}
        PhonePlan(stage.home(f"phones/{name}"), invite, pictures, options).write(plan)
        stage.programs.start(f"phone-{name}", "python", "-m", "simulation.demo.phone", str(plan))


def release_pretrained(stage: Stage, shard: Path) -> Model:
    """Import SFace with the public people and the graphs that phones run, sign it, release it, and return it.

    Graphs that train are made for a task in which phones do.
    No threshold is kept with it: phones would refuse their owners' pictures by it on enrolment, and for people of
    another kind than it was trained on it is too weak for that.
    """
    bundle = bundle_of(stage, "before")
    bundle.parent.mkdir()
    fewer = () if METHODS[stage.task.method].is_minimised else ("--embed-only",)
    stage.operator(
        "model", "import", str(sface_path()), "--adapter", "--public", str(shard), "--graphs", str(bundle), *fewer,
        "--key", str(stage.folder / RELEASE_KEY), "--release",
    )  # fmt: skip
    return read_model(bundle)


def submit(stage: Stage) -> Mapping[str, Any]:
    """Submit the task, print in the coordinator's own words what it shows the server, and return the answer."""
    file = stage.folder / "task.toml"
    file.write_text(tomli_w.dumps(to_mapping(stage.task)), encoding="utf-8")
    answer: Mapping[str, Any] = stage.operator("task", "submit", str(file))
    for sentence in answer["discloses"]:
        cli.ERR.print(f"    [yellow]![/] {escape(sentence)}", highlight=False, soft_wrap=True)
    return answer


def take_part(stage: Stage, task_id: str) -> list[Mapping[str, Any]]:
    """Wait until the task is over, end the phones, and return the report of every attempt of a round.

    Raises UnreachableError when a phone ended by itself, LateError when the task did not end well.
    """
    phones = [f"phone-{name}" for name in stage.people.phones]
    ended: dict[tuple[int, int], Mapping[str, Any]] = {}
    watch = ("mien-coordinator", "task", "watch", task_id, "--home", stage.home(COORDINATOR))
    for event in stage.programs.lines(*watch, meanwhile=lambda: stage.programs.require_running(*phones)):
        status, attempt = event["task"], event["round"]
        if attempt and attempt["stage"] in ("closed", "aborted"):
            key = attempt["round"], attempt["attempt"]
            if key not in ended:
                ended[key] = attempt
                _tell_round(attempt, status["rounds_total"])
        if status["state"] in ("paused", "failed", "cancelled"):
            raise LateError(f"the task is {status['state']}: {status['reason']}; see {stage.options.out / 'logs'}")
    stage.programs.stop(*phones)
    rounds = [ended[key] for key in sorted(ended)]
    if sum(attempt["stage"] == "closed" for attempt in rounds) != stage.task.rounds:
        raise LateError(f"the task ended before its {_rounds(stage.task)}; see {stage.options.out / 'logs'}")
    return rounds


def release_adapted(stage: Stage, model_id: str) -> Model:
    """Release the last round's model with thresholds measured on the public people, and return it."""
    bundle, signed = bundle_of(stage, "after"), bundle_of(stage, "before")
    public = str(stage.folder / "public")
    stage.operator("model", "evaluate", model_id, "--data", public, "--graphs", str(signed), "--keep-thresholds")
    stage.operator("model", "export", model_id, str(bundle))
    # Graphs hold no parameters: those of the model before are this one's too.
    for path in (*signed.glob("*.onnx"), signed / "graphs.json"):
        shutil.copy(path, bundle)
    # As `model sign` does on a machine that stays offline.
    sign_folder(bundle, read_key(stage.folder / RELEASE_KEY), sequence=int(WallClock().now()))
    # The made-up public people may be too few for the threshold that phones ask for; the demo's phones name their own.
    stage.operator("model", "release", model_id, "--without-thresholds", "--bundle", str(bundle))
    return read_model(bundle)


def target_fmr(model: Model, people: DemoPeople) -> float:
    """Return the false match rate among public people at which a phone decides: see `COARSE_FMR`."""
    is_measured = any(threshold.fmr <= TARGET_FMR for threshold in model.spec.thresholds)
    return TARGET_FMR if is_measured and not people.shifted else COARSE_FMR


def check_one_phone(stage: Stage, max_fmr: float) -> PhoneCheck:
    """Return what the first phone decides of its owner's picture and of the next phone's owner's."""
    owner, stranger = list(stage.people.phones)[:2]
    stage.phone(owner, "update", "--runtime", RUNTIME)
    mine, other = (_decided(stage, owner, stage.people.probes(whose), max_fmr) for whose in (owner, stranger))
    return PhoneCheck(
        device=f"phone of {owner}",
        threshold=mine["threshold"],
        threshold_source=(
            f"The threshold is that of FMR {max_fmr:g} for this model on the {len(stage.people.public)} public people, "
            f"who are {stage.people.public_kind}."
        ),
        owner_decision=mine["decision"],
        owner_score=mine["score"],
        owner_accepted=mine["decision"] == "match",
        stranger_decision=other["decision"],
        stranger_score=other["score"],
        stranger_accepted=other["decision"] == "match",
    )


def _decided(stage: Stage, owner: str, probes: list[Path], max_fmr: float) -> Mapping[str, Any]:
    """Return what a phone decides of the first of these pictures that it takes."""
    refused = []
    for probe in probes:
        answer: Mapping[str, Any] = stage.phone(
            owner, "verify", owner, str(probe), "--show-score", "--max-fmr", str(max_fmr), "--runtime", RUNTIME,
            answers=VERIFY_ANSWERS,
        )  # fmt: skip
        if answer["decision"] in ("match", "unknown"):
            return answer
        refused.append(answer["message"])
    raise LowQualityError(f"the phone took none of the pictures to verify with: {'; '.join(refused)}")


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
