"""The demo's outcome: everything measured into one report, and its numbers for people and machines."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from device_sdk.runtimes.manifest import GraphFolder
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from mien.errors import EmptyFolderError, UndefinedMetricError
from mien.evaluation import Comparisons
from mien.methods import METHODS
from mien.methods.base import Property, Runtime, never_stop
from mien.methods.statistics import STATISTICS
from mien.models.known_models import FACE_INPUTS
from mien.shell import cli, provenance
from mien.specs import CohortSpec, FaceInputSpec, to_mapping
from simulation.demo.measure import OwnSample, comparisons_of, equal_error, model_result, own_population
from simulation.demo.stage import Stage
from simulation.engines.engine import Cohort, run_task
from simulation.faces.datasets import LabelledCrops, read_people
from simulation.faces.models import Model
from simulation.pages.demo_page import DemoReport, PhoneCheck, Population, RoundCost


@dataclass(frozen=True)
class Faces:
    """The pictures that the demo itself looks at, which are read while the servers start: they wait for no model.

    `own` are pairs of the released model's own people (LFW); `own_skipped` says why there are none.
    """

    test: LabelledCrops = field(repr=False)
    public: LabelledCrops = field(repr=False)
    own: OwnSample | None = field(default=None, repr=False)
    own_skipped: str = ""

    @classmethod
    def read(cls, stage: Stage, should_stop: Callable[[], bool] = never_stop) -> Faces:
        """Return the pictures as SFace takes them; raises LateError when `should_stop`, asked at each, says so."""
        people, spec = stage.people, FACE_INPUTS["sface"]
        pipeline = people.pipeline(spec)
        public = read_people(people.public, pipeline, should_stop)
        test = read_people(people.test, pipeline, should_stop)
        return cls(test, public, *_own_sample(stage.options.faces, spec, should_stop))


@dataclass(frozen=True)
class Bench:
    """What can be measured while phones are at work: test people, the control, and the released model's own people.

    One runtime for all models, so that each picture goes through the frozen network once. `control` is the model that
    the public people give by the same method; None for methods that train phones against them in any case.
    """

    runtime: Runtime = field(repr=False)
    faces: Faces = field(repr=False)
    before: Comparisons = field(repr=False)
    control: Model | None = None
    control_scores: Comparisons | None = field(default=None, repr=False)

    @classmethod
    def of(cls, stage: Stage, faces: Faces, before: Model, graphs: Path) -> Bench:
        """Return the bench, the released model and the control measured; `graphs` holds the released model's."""
        runtime = OnnxRuntime(before.spec, before.layout, GraphFolder.at(graphs, before.spec, before.layout))
        control = control_of(stage, faces.public, before, runtime)
        if faces.own is not None:
            runtime.embed(before.theta, faces.own.faces.crops)  # what the network makes of them is remembered
        return cls(
            runtime,
            faces,
            comparisons_of(runtime, before.theta, faces.test),
            control,
            None if control is None else comparisons_of(runtime, control.theta, faces.test),
        )


def _with_rates(phone: PhoneCheck, scores: Comparisons) -> PhoneCheck:
    """Return the check with what its threshold gives on the held-out people: single pictures, not templates of many."""
    fmr, tar = (float((each >= phone.threshold).mean()) for each in (scores.non_mated, scores.mated))
    rates = f" Between single pictures of the held-out people it gives FMR {fmr:.2%} and TAR {tar:.1%}."
    return dataclasses.replace(phone, threshold_source=phone.threshold_source + rates)


def control_of(stage: Stage, faces: LabelledCrops, before: Model, runtime: Runtime) -> Model | None:
    """Return the model that the task's method makes of the public people's `faces` alone, where phones train nothing.

    Raises what the method raises where the public people are too few for its form.
    """
    task, people = stage.task, stage.people
    if Property.FORWARD_ONLY not in METHODS[task.method].properties:
        return None
    names, size = sorted(people.public), people.per_phone
    crops, labels = {}, {}
    for group in (names[i : i + size] for i in range(0, len(names), size)):
        found = [faces.of(name) for name in group]
        crops[group[0]] = np.concatenate(found)
        labels[group[0]] = np.repeat(np.arange(len(group)), [len(each) for each in found])
    cohort = CohortSpec(size=len(crops), min_reports=len(crops))
    privacy = dataclasses.replace(task.privacy, min_cohort=min(task.privacy.min_cohort, len(crops)))
    part = before.layout.part(task.trainable or before.spec.trainable or ("*",))
    run = run_task(
        dataclasses.replace(task, cohort=cohort, privacy=privacy),
        part, before.spec.input.dim, before.theta, Cohort(crops, labels=labels), runtime,
    )  # fmt: skip
    return Model(before.spec, before.layout, run.state.theta)


def measure(
    stage: Stage,
    bench: Bench,
    before: Model,
    after: Model,
    rounds: list[Mapping[str, Any]],
    phone: PhoneCheck,
    discloses: list[str],
    started: float,
) -> DemoReport:
    """Return the report: held-out people under every round's model, the released model's own people, and costs."""
    people, seed, test = stage.people, stage.options.seed, bench.faces.test
    num_fte = len(test.failures)
    scores = comparisons_of(bench.runtime, after.theta, test)
    control = None
    if bench.control is not None and bench.control_scores is not None:
        control = model_result(
            f"control: {len(people.public)} public people alone",
            bench.control,
            bench.control_scores,
            num_fte,
            seed=seed,
        )
    sample = bench.faces.own
    own = None if sample is None else own_population(sample, bench.runtime, before, after)
    return DemoReport(
        method=stage.task.method,
        num_phones=len(people.phones),
        num_people=len(people.owners),
        before=model_result("released", before, bench.before, num_fte, seed=seed),
        after=model_result("after the phones' part", after, scores, num_fte, seed=seed),
        control=control,
        rounds=tuple(_round_cost(stage, r, bench, before, after, equal_error(scores)) for r in rounds),
        populations=tuple(
            Population(role, people.dataset, len(group), sum(map(len, group.values())), people.terms)
            for role, group in (
                ("people on phones", people.owners),
                (f"public people, {people.public_kind}", people.public),
                ("test people (held by nobody)", people.test),
            )
        ),
        privacy=tuple(discloses),
        reveals=stage.task.privacy.reveals,
        masked=stage.task.privacy.is_masked,
        phone=_with_rates(phone, scores),
        reproduce=provenance.command("mien-sim"),
        commit=provenance.commit(),
        machine=f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        duration_s=time.monotonic() - started,
        seed=seed,
        own_population=own,
        own_population_skipped=bench.faces.own_skipped,
        caveats=caveats(stage),
        settings=tuple((f"Task: {key}", _in_words(value)) for key, value in to_mapping(stage.task).items()),
    )


def caveats(stage: Stage) -> tuple[str, ...]:
    """Return what must be known to read the gain: whose pictures it may come from."""
    people, task = stage.people, stage.task
    if METHODS[task.method].requirements(task).public_faces:
        return (
            "Phones trained on their own pictures and on those of the public people in the bundle, who are "
            f"{people.public_kind}. No control was run: a gain may be the public people's (docs/decisions/0010).",
        )
    if Property.FORWARD_ONLY not in METHODS[task.method].properties:
        return ()
    return (
        f"The control is the same sum over the {len(people.public)} public people, who are {people.public_kind}, and "
        f"over nobody on a phone. What the {len(people.owners)} people on phones reach beyond it is theirs.",
        f"{len(people.owners)} people are few: a task should ask hundreds, and gates should judge its model on the "
        "people whom the released one was made for (docs/summed-statistics.md).",
    )


def learned(report: DemoReport) -> str:
    """Return what the server learned from the rounds, in one paragraph."""
    closed = [r for r in report.rounds if r.outcome == "closed"]
    fewest = min((r.num_reported for r in closed), default=0)
    shown = f" It was also shown, phone by phone: {', '.join(report.reveals)}." if report.reveals else ""
    if not report.masked:
        return f"Secure aggregation was OFF: the coordinator could read each phone's update, every round.{shown}"
    if report.method == STATISTICS.name:
        return (
            f"Secure aggregation was on, and the coordinator opened one sum over {fewest} phones: how many people they "
            "hold, and the sums of these people's mean features, of their second moments (class_moment) and of the "
            "scatter within each person. Of no single phone it learned anything but when it took part. A sum of second "
            "moments tells somebody who knows a face whether it is among the people of so few phones: that was "
            "measured, and is so of thousands of phones too (docs/leakage.md). A "
            "task should ask more phones, or add noise."
        )
    return (
        f"Secure aggregation was on in every round: the coordinator learned {len(closed)} sums, each over {fewest} "
        "phones or more, with the sum of their image counts and losses, and who took part when; of no single phone an "
        f"update, a count or a loss. What a sum over few phones still tells is in docs/leakage.md.{shown}"
    )


def conclude(report: DemoReport, page: Path, *, as_json: bool) -> None:
    """Print what came of it."""
    before, after = (equal_error(r.comparisons) for r in (report.before, report.after))
    control = None if report.control is None else equal_error(report.control.comparisons)
    own = report.own_population
    result = {
        "eer_before": before,
        "eer_after": after,
        "eer_control": control,
        "mated": report.after.comparisons.num_mated,
        "non_mated": report.after.comparisons.num_non_mated,
        "fte": report.after.num_fte,
        "rounds": sum(r.outcome == "closed" for r in report.rounds),
        "phones": report.num_phones,
        "people": report.num_people,
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
        table = Table(
            "measured",
            "before",
            "after",
            title=f"What {report.num_people} people on {report.num_phones} phones changed",
        )
        counts = f"{result['mated']} mated, {result['non_mated']} non-mated comparisons"
        table.add_row(f"EER on held-out people ({counts})", f"{before:.1%}", f"{after:.1%}")
        if control is not None:
            table.add_row("control: the same of public people, no phone", f"{before:.1%}", f"{control:.1%}")
        if own is None:
            table.add_row(f"own population: not measured, {report.own_population_skipped}", "–", "–")
        else:
            table.add_row(f"{own.dataset}: {own.protocol}", f"{own.accuracy_before:.2%}", f"{own.accuracy_after:.2%}")
        cli.OUT.print(table)
        cli.OUT.print(
            f"One phone says of its owner {report.phone.owner_decision!r}, "
            f"of a stranger {report.phone.stranger_decision!r}. {report.phone.threshold_source}",
            markup=False,
            highlight=False,
        )
        cli.OUT.print(f"What the server learned: {result['learned']}", markup=False, highlight=False)
        for sentence in report.caveats:
            cli.OUT.print(f"How to read it: {sentence}", markup=False, highlight=False)
        cli.OUT.print(f"Report with DET curves and costs: {page}", markup=False, soft_wrap=True)

    cli.emit(result, as_json=as_json, human=human)


def _round_cost(
    stage: Stage, attempt: Mapping[str, Any], bench: Bench, base: Model, last: Model, last_eer: float
) -> RoundCost:
    closed = attempt["stage"] == "closed"
    # Phones hold the first round's model since they enrolled. Every other round begins with a new one, of which they
    # fetch what training changed.
    num_fetched = attempt["num_selected"] if attempt["round"] > 1 and attempt["attempt"] == 1 else 0
    trained = base.layout.part(stage.task.trainable or base.spec.trainable or ("*",))
    eer = None
    if closed and attempt["model_id"] == last.model_id:
        eer = last_eer
    elif closed:
        model = stage.exported(attempt["model_id"], f"round-{attempt['round']}")
        eer = equal_error(comparisons_of(bench.runtime, model.theta, bench.faces.test))
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


def _own_sample(
    faces: Path | None, spec: FaceInputSpec, should_stop: Callable[[], bool] = never_stop
) -> tuple[OwnSample | None, str]:
    """Return pairs of LFW, to measure what the new model costs its people, or why there are none."""
    images = Path(os.environ.get("MIEN_DATA", "")) / "lfw" / "images"
    if "MIEN_DATA" not in os.environ or not images.is_dir():
        return None, "MIEN_DATA names no folder with lfw/images"
    if faces is not None and faces.resolve() == images.resolve():
        return None, "the phones hold people of LFW themselves"
    try:
        return OwnSample.read(images, spec, should_stop), ""
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
