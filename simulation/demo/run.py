"""The demo's steps, top to bottom: what an operator and ten people would do, with the same commands."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

import tomli_w
from rich.markup import escape

from coordinator.commands import tasks
from mien.errors import TABLE, LateError, LowQualityError, MultipleFacesError, NoFaceError
from mien.shell import cli
from mien.shell.files import write_atomically
from mien.specs import CohortSpec, TaskSpec, to_mapping
from simulation.demo.outcome import conclude, measure
from simulation.demo.people import people_from, synthetic_people
from simulation.demo.programs import Programs
from simulation.demo.servers import OPERATOR, start_servers
from simulation.demo.stage import DemoOptions, Stage, ended_by_signals, state_folder, step
from simulation.faces.datasets import People
from simulation.faces.models import Model, sface_path
from simulation.pages.demo_page import PhoneCheck, render_demo

DEFAULT_TASK: Final = Path(__file__).resolve().parents[1] / "papers" / "demo" / "fedface.toml"
TARGET_FMR: Final = 0.01
COARSE_FMR: Final = 0.1
"""FMR where the public people are too few to measure the other: 30 false matches have to be expected."""
# `verify` answers with these exit codes: yes, no, and the three kinds of pictures that it does not take.
VERIFY_ANSWERS: Final = (0, 1, *(TABLE[cls].exit_code for cls in (NoFaceError, MultipleFacesError, LowQualityError)))


def run_demo(options: DemoOptions, *, as_json: bool = False) -> None:
    """Run the demo and leave `report.html` in `options.out`.

    However it ends, every child process has ended and the programs' state (keys, encrypted galleries) is gone; logs and
    report stay. Where it is killed that takes some seconds.
    """
    started = time.monotonic()
    task = read_task(options)
    people = (
        synthetic_people(options.num_phones)
        if options.faces is None
        else people_from(options.faces, options.num_phones, seed=options.seed)
    )
    with (
        ended_by_signals(),
        state_folder(options.out) as folder,
        Programs(options.out / "logs", state=folder) as programs,
    ):
        stage = Stage(options, folder, programs, people, task)
        with step("Start a registrar and a coordinator (mutual TLS on 127.0.0.1)"):
            start_servers(folder, programs)
        with step(f"Import and release the pretrained recogniser with {len(people.public)} public people"):
            before = release_pretrained(stage)
        with step(f"{len(people.phones)} phones join by invite and enrol one person each"):
            join_and_enrol(stage)
        submitted = submit(stage)
        with step(f"Train together: {task.rounds} rounds of {task.method}"):
            rounds = train(stage, submitted["task_id"])
        with step("Release the trained model, with a threshold measured on the public people"):
            after = release_trained(stage, rounds[-1]["model_id"])
        with step("One phone updates, verifies its owner and refuses a stranger"):
            phone = check_one_phone(stage, target_fmr(after))
        with step(f"Measure on {len(people.test)} people whom no phone holds"):
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
    imported = stage.operator("model", "import", str(sface_path()), "--adapter", "--public", str(shard), "--release")
    return stage.exported(imported["model_id"], "before")


def join_and_enrol(stage: Stage) -> None:
    """Invite, join and enrol every phone, as many at a time as there are cores; the first that fails ends it."""
    has_failed = threading.Event()

    def one(name: str) -> None:
        if not has_failed.is_set():
            try:
                whole(name)
            except BaseException:
                has_failed.set()  # at once: this thread takes the next phone before anybody else hears of it
                raise

    def whole(name: str) -> None:
        invite = stage.operator("device", "invite", "--note", "demo phone", "--operator", str(stage.folder / OPERATOR))
        stage.phone(name, "join", invite["url"], "--keystore", "file")
        images = [str(path) for path in stage.people.enrolled(name)]
        stage.phone(name, "enroll", "owner", *images, "--consent")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            for done in as_completed([pool.submit(one, name) for name in stage.people.phones]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stage.programs.stop_all()  # nobody waits for a phone that is half-way
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
    if not stage.task.privacy.is_masked:
        agreed.append("--allow-plain-sums")
    phones = {name: f"phone-{name}" for name in stage.people.phones}
    for name, program in phones.items():
        stage.programs.start(
            program, "mien-device", "participate", "--home", stage.home(f"phones/{name}"),
            "--min-cohort", str(stage.task.privacy.min_cohort), *agreed,
        )  # fmt: skip
    ended: dict[tuple[int, int], Mapping[str, Any]] = {}
    watch = ("mien-coordinator", "task", "watch", task_id, "--home", stage.home("coordinator"))
    for event in stage.programs.lines(*watch, meanwhile=lambda: stage.programs.require_running(*phones.values())):
        status, attempt = event["task"], event["round"]
        if attempt and attempt["stage"] in ("closed", "aborted"):
            key = attempt["round"], attempt["attempt"]
            if key not in ended:
                ended[key] = attempt
                _tell_round(attempt, status["rounds_total"])
        if status["state"] in ("paused", "failed", "cancelled"):
            raise LateError(f"the task is {status['state']}: {status['reason']}; see {stage.options.out / 'logs'}")
    stage.programs.stop(*phones.values())
    rounds = [ended[key] for key in sorted(ended)]
    if sum(attempt["stage"] == "closed" for attempt in rounds) != stage.task.rounds:
        raise LateError(f"the task ended before its {stage.task.rounds} rounds; see {stage.options.out / 'logs'}")
    return rounds


def release_trained(stage: Stage, model_id: str) -> Model:
    """Release the last round's model with thresholds measured on the public people, and return it."""
    stage.operator("model", "evaluate", model_id, "--data", str(stage.folder / "public"), "--keep-thresholds")
    # The made-up public people may be too few for the threshold that phones ask for; the demo's phones name their own.
    stage.operator("model", "release", model_id, "--without-thresholds")
    return stage.exported(model_id, "after")


def target_fmr(model: Model) -> float:
    """Return the false match rate at which a phone decides: the lowest for which the model has a threshold."""
    return TARGET_FMR if any(threshold.fmr <= TARGET_FMR for threshold in model.spec.thresholds) else COARSE_FMR


def check_one_phone(stage: Stage, max_fmr: float) -> PhoneCheck:
    """Return what the first phone decides of its owner's picture and of the next phone's owner's."""
    owner, stranger = list(stage.people.phones)[:2]
    stage.phone(owner, "update")
    mine, other = (_decided(stage, owner, stage.people.probes(whose), max_fmr) for whose in (owner, stranger))
    return PhoneCheck(
        device=f"phone of {owner}",
        threshold=mine["threshold"],
        threshold_source=f"FMR {max_fmr:g} on the {len(stage.people.public)} public people, for this model",
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
            owner, "verify", "owner", str(probe), "--show-score", "--max-fmr", str(max_fmr), answers=VERIFY_ANSWERS
        )
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
