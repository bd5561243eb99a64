"""The demo's outcome: everything measured into one report, and its numbers for people and machines."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from device_sdk.runtimes import load_runtime
from mien.errors import EmptyFolderError, UndefinedMetricError
from mien.methods import METHODS
from mien.methods.base import Runtime
from mien.shell import cli, provenance
from mien.specs import TaskSpec, to_mapping
from simulation.demo.measure import OwnSample, comparisons_of, equal_error, model_result, own_population
from simulation.demo.stage import Stage
from simulation.faces.datasets import LabelledCrops, read_people
from simulation.faces.models import Model
from simulation.pages.demo_page import DemoReport, OwnPopulation, PhoneCheck, Population, RoundCost


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
        masked=stage.task.privacy.is_masked,
        phone=phone,
        reproduce=provenance.command("mien-sim"),
        commit=provenance.commit(),
        machine=f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=time.monotonic() - started,
        seed=seed,
        own_population=own,
        own_population_skipped=skipped,
        caveats=caveats(stage.task),
        settings=tuple((f"Task: {key}", _in_words(value)) for key, value in to_mapping(stage.task).items()),
    )


def caveats(task: TaskSpec) -> tuple[str, ...]:
    """Return what must be known to read the gain: in the private form, whose pictures it comes from."""
    if not METHODS[task.method].requirements(task).public_faces:
        return ()
    return (
        "Phones trained on their own pictures and on those of the public people in the bundle, who are of the test "
        "people's population. A control with the phones' own pictures at weight 0 came equally far with ten phones "
        "(docs/decisions/0010): so far the gain is the public people's; the phones' part grows with their number.",
    )


def learned(report: DemoReport) -> str:
    """Return what the server learned from the rounds, in one paragraph."""
    closed = [r for r in report.rounds if r.outcome == "closed"]
    fewest = min((r.num_reported for r in closed), default=0)
    shown = f" It was also shown, phone by phone: {', '.join(report.reveals)}." if report.reveals else ""
    if not report.masked:
        return f"Secure aggregation was OFF: the coordinator could read each phone's update, every round.{shown}"
    return (
        f"Secure aggregation was on in every round: the coordinator learned {len(closed)} sums, each over {fewest} "
        "phones or more, with the sum of their image counts and losses, and who took part when; of no single phone an "
        f"update, a count or a loss. What a sum over few phones still tells is in docs/leakage.md.{shown}"
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
        "learned": learned(report),
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
        cli.OUT.print(f"What the server learned: {result['learned']}", markup=False, highlight=False)
        for sentence in report.caveats:
            cli.OUT.print(f"How to read it: {sentence}", markup=False, highlight=False)
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
        model = stage.exported(attempt["model_id"], f"round-{attempt['round']}")
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
    """Return the cost of training on LFW, or why that was not measured."""
    images = Path(os.environ.get("MIEN_DATA", "")) / "lfw" / "images"
    if "MIEN_DATA" not in os.environ or not images.is_dir():
        return None, "MIEN_DATA names no folder with lfw/images"
    if faces is not None and faces.resolve() == images.resolve():
        return None, "the phones hold people of LFW themselves"
    try:
        return own_population(OwnSample.read(images, before.spec.input), before, after), ""
    except (UndefinedMetricError, EmptyFolderError) as error:  # an incomplete LFW must not cost the report
        return None, error.message


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
