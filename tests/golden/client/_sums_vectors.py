"""What `sums.json` holds: what the log of private sums lets a phone into, and what noised sums may tell of it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from device_sdk.rounds.attempts import DAY_S, Attempts, SumLimits, promised, sums_today
from device_sdk.storage.keystore import FileKeyStore
from mien.dp.accountant import epsilon_rdp
from mien.errors import BudgetExceededError, ReplayError
from mien.protocol.canonical import task_to_json
from mien.protocol.ids import PopulationId
from mien.secagg import Mechanism, NoiseTerms, RoundConfig
from mien.secagg.noise import release
from mien.shell.clock import Clock
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec
from tests.mien.secagg.cohort import NUMBERS, make_config

Json = dict[str, Any]

NOW_S: Final = 1_800_000_000
MINE, OTHERS, UNKNOWN = b"m" * 32, b"o" * 32, bytes(32)
WHY: Final = {
    "over model": "model",
    "in the last 24 hours": "day",
    "over all their sums": "epsilon",
    "the owner's limit is": "owner",
    "is counted already": "adds up",
    "sums of this task already": "task",
}


def dp_of(noise: NoiseTerms, caps: tuple[int, int] = (99, 1)) -> DpSpec:
    """Return the promise of a task whose rounds have this noise; `caps` are its participations and their distance."""
    mechanism = "skellam" if noise.mechanism is Mechanism.SKELLAM else "central_gaussian"
    if noise.mechanism is Mechanism.NONE:
        return DpSpec()
    told = (noise.noise_multiplier, noise.target_epsilon, noise.delta)
    return DpSpec(mechanism, *told, max_participations=caps[0], min_separation=caps[1])


def task_of(noise: NoiseTerms, caps: tuple[int, int] = (99, 1), method: str = "fedavg") -> TaskSpec:
    """Return a task whose rounds have this noise."""
    privacy = PrivacySpec(min_cohort=4, max_weight=1, dp=dp_of(noise, caps))
    return TaskSpec("t", method=method, cohort=CohortSpec(6, min_reports=4), trainable=("mix.*",), privacy=privacy)


DEFAULTS: Final = SumLimits()
CLEAR: Final = NoiseTerms()
NOISE: Final = NoiseTerms(Mechanism.SKELLAM, 4.0, 8.0, 1e-6)
CENTRAL: Final = replace(NOISE, mechanism=Mechanism.CENTRAL_GAUSSIAN)


def terms(task: str, number: int = 1, attempt: int = 1, noise: NoiseTerms = CLEAR, model: str = "a") -> RoundConfig:
    """Return a round's terms."""
    numbers = NUMBERS if noise is CLEAR else replace(NUMBERS, max_weight=1, frac_bits=8)
    return make_config(
        *(7,),
        task_id=task.encode().ljust(16, b"."),
        round=number,
        attempt=attempt,
        noise=noise,
        numbers=numbers,
        model_sha256=model.encode() * 32,
    )


@dataclass(frozen=True)
class Step:
    """One step of a phone: it begins an attempt, sends its vector (`mask`), gives out shares (`open`), or hears that
    the round closed with it (`close`).

    `at_s` is when, from the beginning on; `caps` are a task's participations and their distance; `max_epsilon` is the
    owner's limit, 0 without one.
    """

    do: str
    terms: RoundConfig
    pictures: bytes = MINE
    at_s: int = 0
    caps: tuple[int, int] = (99, 1)
    method: str = "fedavg"
    limits: SumLimits = DEFAULTS
    population: str = "here"
    max_epsilon: float = 0.0


def begins(*told: RoundConfig, **more: Any) -> list[Step]:
    """Return the beginnings of these attempts."""
    return [Step("begin", each, **more) for each in told]


def masks(*told: RoundConfig, **more: Any) -> list[Step]:
    """Return attempts up to the vector."""
    return [Step(do, each, **more) for each in told for do in ("begin", "mask")]


def opens(*told: RoundConfig, **more: Any) -> list[Step]:
    """Return attempts up to the shares."""
    return [Step(do, each, **more) for each in told for do in ("begin", "mask", "open")]


def _stories() -> dict[str, list[Step]]:
    small, large = replace(NOISE, target_epsilon=2.0), replace(NOISE, target_epsilon=1000.0)
    dear = replace(NOISE, noise_multiplier=1.5)
    many = [terms(f"task {n // 3}", n % 3 + 1, noise=dear) for n in range(8)]
    spent = epsilon_rdp([(_released(terms("old", noise=dear)), 3)], 1e-6)
    three = SumLimits(per_day=3)
    many_a_day = SumLimits(per_day=99)
    each = [terms(f"each {n}", model=chr(ord("r") - n)) for n in range(18)]
    day = [terms(f"day {n}", model=chr(97 + n)) for n in range(9)]
    return {
        "the same pictures go into one opened sum over a model, whatever its task is called": [
            *opens(terms("t")),
            *begins(terms("t", 1, 2), terms("t", 2), terms("u")),
            *opens(terms("t", 2, model="b")),
            *begins(terms("u", 3), pictures=OTHERS),
            *begins(terms("u", 4), limits=SumLimits(per_model=2)),
        ],
        "an attempt that nobody was helped to open may be tried again, and keeps others out": [
            *masks(terms("t"), terms("t", 1, 2), terms("t", 1, 3)),
            *begins(terms("t", 2), terms("u", 1, 4)),
            *opens(terms("t", 1, 4)),
            *begins(terms("t", 1, 5)),
        ],
        "a round that closed without this phone's shares has been opened by others": [
            *masks(terms("t")),
            Step("close", terms("t")),
            *begins(terms("t", 1, 2), terms("u")),
            Step("close", terms("u")),
            *opens(terms("t", 2, model="b")),
            Step("close", terms("t", 2, model="b")),
        ],
        "of attempts that began together one goes on": [
            *begins(terms("t"), terms("u")),
            Step("mask", terms("u")),
            Step("mask", terms("t")),
        ],
        "pictures that nobody noted may have been any": [
            *opens(terms("t"), pictures=UNKNOWN),
            *begins(terms("u"), pictures=OTHERS),
        ],
        "noise that only the coordinator promises is none": [
            *masks(terms("a", noise=CENTRAL)),
            *begins(terms("b", noise=CENTRAL)),
        ],
        "phones' own noise counts": masks(*(terms(str(n), noise=NOISE) for n in range(3))),
        "phones' own noise that promises nothing does not count": [
            *masks(terms("a", noise=large)),
            *begins(terms("b", noise=large)),
        ],
        "a day has so many sums over models that differ in a bit": [
            *opens(day[0], limits=three),
            *masks(day[1], replace(day[1], attempt=2), limits=three),
            *opens(day[2], limits=three),
            *begins(day[3], limits=three),
            *begins(replace(day[1], attempt=3), limits=three),
            *opens(*day[3:6], limits=three, at_s=DAY_S),
            *opens(day[6], limits=three, at_s=-DAY_S),
        ],
        "what is used up is told of the newest models alone, and of none that another attempt may go on with": [
            *(step for n in range(18) for step in opens(each[n], limits=many_a_day, at_s=n // 2)),
            *masks(terms("again", model="z"), limits=many_a_day, at_s=9),
            *begins(terms("twice"), limits=SumLimits(per_model=2, per_day=18), at_s=9),
            *begins(terms("others"), pictures=OTHERS, limits=SumLimits(per_day=19), at_s=9),
            *begins(terms("later"), limits=SumLimits(per_day=18), at_s=DAY_S + 8),
        ],
        "sums of another population are not this one's": [
            *opens(terms("t"), population="elsewhere"),
            *opens(terms("u")),
        ],
        "an owner's limit is over every population's sums, a promise over its own": [
            *masks(*(terms(f"old {n}", noise=dear) for n in range(3)), population="elsewhere"),
            *begins(terms("a", noise=dear), max_epsilon=spent),
            *masks(*(terms(f"new {n}", noise=dear) for n in range(3))),
            *begins(terms("b", noise=dear), max_epsilon=1.5 * spent),
            *begins(terms("c", noise=dear), max_epsilon=4 * spent),
        ],
        "an owner's limit ends with a sum without noise, of whatever population": [
            *opens(terms("t"), population="elsewhere"),
            *begins(terms("u", noise=NOISE), max_epsilon=1000.0),
            *begins(terms("v", noise=NOISE)),
        ],
        "a promise holds over all tasks, whatever they are called": masks(*many),
        "the smallest promise holds, and none survives a sum without noise": [
            *masks(terms("small", noise=small), terms("large", noise=NOISE)),
            *masks(*(terms("large", n, noise=NOISE) for n in range(2, 6))),
            *begins(terms("clear")),
        ],
        "sums without noise before any promise keep nobody out": masks(terms("clear"), terms("noisy", noise=NOISE)),
        "a task's own promise": [
            *masks(terms("t", 1, noise=NOISE), caps=(2, 3)),
            *begins(terms("t", 3, noise=NOISE), caps=(2, 3)),
            *masks(terms("t", 4, noise=NOISE), caps=(2, 3)),
            *begins(terms("t", 9, noise=NOISE), caps=(2, 3)),
        ],
        "where sums add up a phone is in one of them": [
            *begins(terms("s", 1), method="statistics"),
            *masks(terms("s", 2), method="statistics"),
            *begins(terms("s", 3, model="b"), method="statistics"),
        ],
    }


class _Clock(Clock):
    unix_s = float(NOW_S)

    def now(self) -> float:
        return self.unix_s


@dataclass
class _Table:
    """Long texts, each written once; `number` is where one stands."""

    texts: list[str]

    def number(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)


def sums() -> Json:
    """Return whole stories of a phone's log of sums, and epsilons of noised ones."""
    tasks, rounds = _Table([]), _Table([])
    with tempfile.TemporaryDirectory() as folder:
        stories = [
            {"what": what, "steps": _told(steps, Path(folder) / str(number), tasks, rounds)}
            for number, (what, steps) in enumerate(_stories().items())
        ]
    return {"tasks": tasks.texts, "terms": rounds.texts, "stories": stories, "epsilons": _epsilons()}


def _told(steps: Sequence[Step], home: Path, tasks: _Table, rounds: _Table) -> list[Json]:
    """Return a story's steps with what each ends with, in a real log on disk."""
    clock, key_store, told = _Clock(), FileKeyStore(home / "keys"), []
    for step in steps:
        clock.unix_s = NOW_S + step.at_s
        log = Attempts.open(home / "attempts.db", key_store, PopulationId(step.population), clock)
        task = task_of(step.terms.noise, step.caps, step.method)
        ends = _ends(log.under(promised(task, step.max_epsilon or None, step.limits), step.pictures), step)
        used_up = step.limits.used_up(log.sums(), partial(frozenset, (step.pictures,)), int(clock.unix_s))
        told.append(
            {
                "do": step.do,
                "terms": rounds.number(step.terms.to_bytes().hex()),
                "task": tasks.number(task_to_json(task).decode()),
                "pictures": step.pictures.hex(),
                "population": step.population,
                "unix_s": int(clock.unix_s),
                "per_model": step.limits.per_model,
                "per_day": step.limits.per_day,
                "max_epsilon": step.max_epsilon,
                "ends": ends,
                "sums_today": sums_today(log.sums(), int(clock.unix_s)),
                "used_up": {"models": " ".join(used_up.models), "day": used_up.day},
            }
        )
        log.close()
    return told


def _ends(log: Attempts, step: Step) -> str:
    """Return "ok", or the word for why a step was refused."""
    try:
        match step.do:
            case "begin":
                log.begin(step.terms)
            case "mask":
                log.record_masked(step.terms.attempt_id)
            case "close":
                log.record_closed(step.terms.attempt_id)
            case _:
                log.record_unmasked(step.terms.attempt_id)
    except BudgetExceededError as error:
        (why,) = (word for part, word in WHY.items() if part in error.message)
        return why
    except ReplayError:
        return "replay"
    return "ok"


def _epsilons() -> list[Json]:
    """Return sums of both mechanisms, of small and large vectors, coarse and fine steps, and their epsilon together."""
    fine = replace(NUMBERS, max_weight=1, frac_bits=16, l2_clip=1.0)
    coarse = replace(NUMBERS, max_weight=1, frac_bits=8, coordinate_clip=0.01)
    sum_of = [
        replace(terms("e", noise=noise), size=size, numbers=numbers)
        for noise, size, numbers in (
            (NOISE, 7, fine),
            (NOISE, 100_000, fine),
            (NOISE, 16_512, coarse),
            (replace(NOISE, noise_multiplier=0.7), 3, fine),
            (CENTRAL, 7, fine),
            (replace(CENTRAL, noise_multiplier=0.3), 2_000_000, coarse),
            (replace(CENTRAL, noise_multiplier=200.0), 50, fine),
        )
    ]
    grid = [*([each] for each in sum_of), sum_of[:3], sum_of[4:], sum_of, [sum_of[0]] * 40]
    return [
        {
            "sums": [each.to_bytes().hex() for each in composed],
            "delta": delta,
            "epsilon": epsilon_rdp([(_released(each), 1) for each in composed], delta),
        }
        for composed in grid
        for delta in (1e-6, 1e-2)
    ]


def _released(sum_: RoundConfig) -> Any:
    found = release(sum_, dp_of(sum_.noise))
    assert found is not None
    return found
