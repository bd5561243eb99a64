"""Actions of `mien-sim fleet`: policies over one fleet, as a table with ratios, records as files, and a page."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from mien.errors import ConfigError
from mien.records import to_mapping
from mien.shell import cli, provenance
from mien.shell.cli import say
from mien.shell.files import make_folder, write_atomically
from mien.specs import TaskSpec
from simulation.faces.models import Model, read_model
from simulation.fleet.comparison import ROWS, Tried, cell, verdict
from simulation.fleet.costs import round_cost
from simulation.fleet.fleet import Fleet
from simulation.fleet.phones import DrawnPhones, check_number
from simulation.fleet.policies import Policy, policies
from simulation.fleet.profile import Profile, default_text, read_profile
from simulation.fleet.records import Attempt, History
from simulation.fleet.summary import summarise, time_to
from simulation.fleet.traces import Behaviour, Speeds, TracePresence, capacity_of, read_behaviour, read_speeds
from simulation.fleet.training import Trainer
from simulation.fleet.windows import DAY_S
from simulation.runs.records import only_writer, refuse_others

OUT: Final = Path("out/fleet")
SUMMARY: Final = "summary.json"
ATTEMPTS: Final = ".attempts.jsonl"
MAX_DAYS: Final = 366.0
NAME_LENGTH: Final = 80
MAX_SEED: Final = 2**63 - 1
MOST_ROUNDS: Final = 100_000
"""The most that a task can ask for: policies run for as long as the others, and not until a task's rounds are over."""


@dataclass(frozen=True)
class Options:
    """The command's options; `phones` is None for as many as the trace or the experiment has, or 10,000.

    With an `experiment` its clients are the phones, and cohorts train; paths of its faces start at `faces`, by default
    at MIEN_DATA, or `faces` names a data set in place of them.
    """

    tasks: tuple[Path, ...]
    changes: tuple[str, ...] = ()
    profile: Path | None = None
    model: Path | None = None
    trace: Path | None = None
    capacity: Path | None = None
    phones: int | None = None
    days: float = 1.0
    seed: int = 0
    out: Path | None = None
    experiment: Path | None = None
    faces: Path | None = None

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("name the task to try, a TOML file as mien-coordinator task submit takes it")
        if not 0 < self.days <= MAX_DAYS:
            raise ConfigError(f"--days is {self.days:g}; it must be positive and at most {MAX_DAYS:g}")
        if self.phones is not None:
            check_number(self.phones)
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"--seed is {self.seed}; it must lie between 0 and {MAX_SEED}")


@dataclass(frozen=True)
class Setting:
    """The fleet that all policies meet."""

    profile: Profile
    model: Model | None
    behaviour: Behaviour | None
    speeds: Speeds | None
    num_phones: int
    days: float
    seed: int
    trainer: Trainer | None = None

    @classmethod
    def of(cls, options: Options) -> Setting:
        """Return the setting that the options name, read from their files."""
        profile = read_profile(options.profile)
        behaviour = None if options.trace is None else read_behaviour(options.trace)
        if behaviour is not None:
            _check_uncut(profile)
        speeds = None if options.capacity is None else read_speeds(options.capacity)
        trainer = None if options.experiment is None else _trainer(options.experiment, options.faces)
        known = 10_000 if behaviour is None else behaviour.num_clients
        if trainer is not None:
            known = len(trainer.clients)
            if options.phones not in (None, known):
                raise ConfigError(f"--phones is {options.phones}, and the experiment has {known} clients; leave it out")
        return cls(
            profile,
            None if options.model is None else read_model(options.model),
            behaviour,
            speeds,
            options.phones or known,
            options.days,
            options.seed,
            trainer,
        )


def _check_uncut(profile: Profile) -> None:
    """Raise ConfigError where a profile limits an app's time, beside a trace, which says when phones are there."""
    for name in ("job_minutes", "restricted_share"):
        if value := getattr(profile.availability, name):
            raise ConfigError(
                f"availability.{name} is {value:g}, and cuts no span of a trace; leave it out of the profile, or leave "
                "--trace out"
            )


def _trainer(experiment: Path, faces: Path | None) -> Trainer:
    from simulation.faces.sources import faces_named, faces_root  # with torch, which timing alone does not need

    return Trainer(experiment, faces_root(faces), faces_named(faces))


def show_profile() -> None:
    """Print the default profile, for a file of one's own."""
    cli.OUT.print(default_text(), end="", markup=False, highlight=False, soft_wrap=True)


def fleet(options: Options, *, as_json: bool) -> None:
    """Try policies on a fleet; write records and the page; print the table."""
    setting, folder = Setting.of(options), options.out or OUT / options.tasks[0].stem
    wanted = policies(options.tasks, options.changes)
    refuse_others(folder, but=SUMMARY)
    make_folder(folder)
    with only_writer(folder):
        tried = [try_policy(policy, setting) for policy in wanted]
        write(tried, setting, folder)
    answer = {
        "folder": str(folder),
        "report": str(folder / "report.html"),
        "policies": [_plain(each) for each in tried],
    }
    cli.emit(answer, as_json=as_json, human=lambda: _print(tried, folder))


def try_policy(policy: Policy, setting: Setting) -> Tried:
    """Return a policy's effect on the fleet in all of its days; those of the task's rounds train, where any do."""
    phones = phones_of(policy.task, setting)
    task = dataclasses.replace(policy.task, rounds=MOST_ROUNDS)
    history = Fleet(task, phones, setting.profile.coordinator, until_s=setting.days * DAY_S, seed=setting.seed).run()
    tried = Tried(policy, summarise(history, phones), history)
    if setting.trainer is None:
        return tried
    devices = [phones.name(phone) for phone in range(setting.num_phones)]
    trained = first_rounds(history, policy.task.rounds)
    return dataclasses.replace(tried, points=setting.trainer.points(policy.task, trained, devices))


def first_rounds(history: History, rounds: int) -> History:
    """Return a history without the models after a task's last round."""
    kept = tuple(each for each in history.attempts if each.version is None or each.version <= rounds)
    return dataclasses.replace(history, attempts=kept, rounds_closed=min(history.rounds_closed, rounds))


def phones_of(task: TaskSpec, setting: Setting) -> DrawnPhones:
    """Return the fleet's phones under a task: drawn from the profile, or as the traces have them."""
    profile, num, seed = setting.profile, setting.num_phones, setting.seed
    cost = round_cost(task, profile.work, setting.model)
    capacity = None if setting.speeds is None else capacity_of(setting.speeds, profile, num)
    share = profile.availability.offline_share
    presence = None if setting.behaviour is None else TracePresence(setting.behaviour, num, share, seed)
    images = None if setting.trainer is None else setting.trainer.images
    return DrawnPhones(profile, task, cost, num, seed, capacity=capacity, presence=presence, images=images)


def write(tried: Sequence[Tried], setting: Setting, folder: Path) -> None:
    """Write `summary.json`, one line an attempt for each policy, and the page, in the place of an earlier fleet's."""
    from simulation.fleet.page import fleet_page

    for earlier in folder.glob(f"*{ATTEMPTS}"):
        earlier.unlink()
    about = {
        "command": provenance.command("mien-sim"),
        "commit": provenance.commit(),
        "phones": setting.num_phones,
        "days": setting.days,
        "seed": setting.seed,
        "profile": to_mapping(setting.profile),
    }
    found = {"run": about, "policies": [{**_plain(each), "task": to_mapping(each.policy.task)} for each in tried]}
    write_atomically(folder / SUMMARY, _json(found))
    for each in tried:
        lines = b"".join(_json(_attempt(attempt)) for attempt in each.history.attempts)
        write_atomically(folder / f"{_file_name(each.policy.name)}{ATTEMPTS}", lines)
    write_atomically(folder / "report.html", fleet_page(tried, about).encode())


def _print(tried: Sequence[Tried], folder: Path) -> None:
    table = Table("policy", *map(str, range(1, len(tried) + 1)))
    for row in ROWS:
        table.add_row(row.name, *(cell(row, each.summary, tried[0].summary) for each in tried))
    cli.OUT.print(table)
    for number, each in enumerate(tried, 1):
        say(f"{number}  {each.policy.name}: {verdict(each)}")
        if each.points:
            say(f"  EER {each.points[0].eer:.2%} before, {each.points[-1].eer:.2%} at {each.points[-1].hours:.1f} h")
    say(f"All were measured for {tried[0].summary.days:g} days, also beyond the rounds that a task asks for.")
    say("Emulated phones: compare policies, and measure your own phones before you count on a figure.")
    say(str(folder / "report.html"))


def _plain(tried: Tried) -> dict[str, Any]:
    rounds = tried.policy.task.rounds
    over = {"task_rounds": rounds, "task_rounds_s": time_to(tried.history, rounds)}
    points = {"eer": [dataclasses.asdict(point) for point in tried.points]} if tried.points else {}
    return {"policy": tried.policy.name, **over, **_finite({**dataclasses.asdict(tried.summary), **points})}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as a line holds it; who was in it is left out."""
    names = [field.name for field in dataclasses.fields(attempt) if field.name not in ("fates", "stages", "devices")]
    return {
        **{name: getattr(attempt, name) for name in names},
        "stages": {str(stage): at_s for stage, at_s in attempt.stages},
        "fates": {str(fate): number for fate, number in attempt.fates.items()},
        "staleness": attempt.staleness,
    }


def _finite(value: Any) -> Any:
    """Return plain data in which what is not a number is missing, as JSON has it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _json(value: object) -> bytes:
    return json.dumps(_finite(value), allow_nan=False).encode() + b"\n"


def _file_name(policy: str) -> str:
    """Return a file's name for a policy: its own, or what a file may be called of it and a digest of the whole."""
    name = re.sub(r"[^A-Za-z0-9._=-]+", "_", policy)[:NAME_LENGTH]
    return name if name == policy else f"{name}-{hashlib.sha256(policy.encode()).hexdigest()[:8]}"
