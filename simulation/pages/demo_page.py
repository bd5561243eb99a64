"""The page that the demo leaves: phones joined, took part, and verify better (or not).

`DemoReport` is what the demo fills in; every rate is computed here from comparisons, so that no number on the page can
differ from its counts. Whether things got better or worse is read off the numbers, never assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mien.errors import ConfigError
from mien.evaluation import (
    Comparisons,
    DetCurve,
    Interval,
    NotMeasurable,
    OperatingPoint,
    det_curve,
    equal_error_rate,
    rule_of_three,
    tar_at_fmrs,
)
from mien.format import count, duration, fraction, percent, points, score, several, size
from mien.shell.pages import Facts, Figure, Prose, Report, Section, Table, Tile, Tiles, Tone, columns, render
from simulation.pages.figures import (
    AFTER,
    BEFORE,
    Band,
    NamedCurve,
    NamedScores,
    det_figure,
    rounds_chart,
    score_charts,
)

DEFAULT_TARGETS = (1e-1, 1e-2, 1e-3)
CONTROL = 3
"""Number of the control's series in a figure that shows no scores."""


@dataclass(frozen=True)
class Population:
    """People in one role: e.g. role "test identities (held out)", 30 people, 300 images, and their terms."""

    role: str
    dataset: str
    num_identities: int
    num_images: int
    terms: str


@dataclass(frozen=True)
class ModelResult:
    """One model's comparisons on the held-out identities; `num_fte` samples gave no template."""

    name: str
    model_id: str
    comparisons: Comparisons = field(repr=False)
    num_fte: int = 0
    eer_interval: Interval | None = None


@dataclass(frozen=True)
class RoundCost:
    """Cost of one round, and the EER of its model where it was measured.

    Bytes are totals over the cohort: `bytes_up` are contributions that the coordinator received, `bytes_down` what
    training had changed of the model, for each phone that had to fetch it. `outcome` is "closed" or why it aborted.
    """

    number: int
    num_asked: int
    num_reported: int
    bytes_down: int
    bytes_up: int
    duration_s: float
    eer: float | None = None
    outcome: str = "closed"


@dataclass(frozen=True)
class OwnPopulation:
    """Cost of training for the people whom the released model was made for: accuracy before and after.

    `protocol` says how pairs and threshold were chosen, e.g. "300 fixed pairs of LFW, threshold fixed before training".
    """

    dataset: str
    protocol: str
    accuracy_before: float
    accuracy_after: float
    num_mated: int
    num_non_mated: int
    num_fte: int
    terms: str


@dataclass(frozen=True)
class PhoneCheck:
    """One phone after the last round: its owner and a stranger, each with the decision and score at its threshold."""

    device: str
    threshold: float
    threshold_source: str
    owner_decision: str
    owner_score: float
    owner_accepted: bool
    stranger_decision: str
    stranger_score: float
    stranger_accepted: bool


@dataclass(frozen=True)
class DemoReport:
    """Everything that the demo's page shows.

    `privacy` are plain sentences on what left the phones and what the server saw; `reveals` names what was sent in
    clear by the task's choice, empty if nothing was. `control` is the model made of public people alone, where one was.
    `reproduce` is the command that gives the page again.
    """

    method: str
    num_phones: int
    num_people: int
    before: ModelResult
    after: ModelResult
    rounds: tuple[RoundCost, ...]
    populations: tuple[Population, ...]
    privacy: tuple[str, ...]
    reveals: tuple[str, ...]
    masked: bool
    phone: PhoneCheck
    reproduce: str
    commit: str
    machine: str
    finished_at: str
    duration_s: float
    seed: int
    control: ModelResult | None = None
    own_population: OwnPopulation | None = None
    own_population_skipped: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    caveats: tuple[str, ...] = ()
    targets: tuple[float, ...] = DEFAULT_TARGETS

    def __post_init__(self) -> None:
        if self.own_population is None and not self.own_population_skipped:
            raise ConfigError("demo report has no own_population; say in own_population_skipped why not")
        if not self.rounds:
            raise ConfigError("demo report has no rounds; there is nothing to report before one has closed")


def render_demo(report: DemoReport) -> str:
    """Return the demo's page as one self-contained HTML text; raises UndefinedMetricError if scores are missing."""
    before, after = _Measured.of(report.before, report.targets), _Measured.of(report.after, report.targets)
    control = None if report.control is None else _Measured.of(report.control, report.targets)
    sections: tuple[Section, ...] = (
        _headlines(report, before, after, control),
        Prose("privacy", "What left the phones", report.privacy, is_notice=True),
        *((Prose("caveats", "How to read the gain", report.caveats, is_notice=True),) if report.caveats else ()),
        _verification(report, before, after),
        _det(report, before, after, control),
        *((_rounds_figure(report, before, after),) if len(report.rounds) > 1 else ()),
        _scores(report, after),
        _phone(report.phone),
        _costs(report),
        _own_population(report),
        _provenance(report),
    )
    closed = sum(r.outcome == "closed" for r in report.rounds)
    return render(
        Report(
            title=f"{several(report.num_phones, 'phone')}, {several(closed, 'round')}, one recogniser",
            lede=(
                f"Phones enrolled {several(report.num_people, 'person', 'people')} and took part in a task of "
                f"{report.method} with these "
                "people's pictures; the coordinator combined what they sent. Below: how well people whom no phone ever "
                "saw are verified before and after."
            ),
            sections=sections,
            footer=(
                *dict.fromkeys(f"{p.dataset}: {p.terms}" for p in report.populations),
                f"Commit {report.commit}. Finished {report.finished_at}.",
            ),
        )
    )


@dataclass(frozen=True, eq=False)
class _Measured:
    """A model's figures, each computed once."""

    result: ModelResult
    curve: DetCurve
    eer: float
    eer_threshold: float
    rows: tuple[OperatingPoint | NotMeasurable, ...]

    @classmethod
    def of(cls, result: ModelResult, targets: Sequence[float]) -> _Measured:
        curve = det_curve(result.comparisons)
        eer = equal_error_rate(curve)
        return cls(result, curve, eer.value, eer.at.threshold, tar_at_fmrs(curve, targets))


def _listed(reveals: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in reveals)


def _tone(difference: float, *, better_is: int) -> Tone:
    return "plain" if difference == 0 else "good" if (difference > 0) == (better_is > 0) else "bad"


def _headlines(report: DemoReport, before: _Measured, after: _Measured, control: _Measured | None) -> Tiles:
    gap = after.eer - before.eer
    counts = f"{count(after.curve.num_mated)} mated, {count(after.curve.num_non_mated)} non-mated comparisons"
    items = [
        Tile(
            "Equal error rate, held-out people",
            percent(after.eer),
            f"{percent(before.eer)} before, {points(gap)}; {counts}",
            _tone(gap, better_is=-1),
        )
    ]
    if control is not None:
        items.append(
            Tile(
                "The same error, of the control",
                percent(control.eer),
                f"{control.result.name}; the phones' own part is {points(after.eer - control.eer)}",
                "plain",
            )
        )
    pair = _last_measurable(before, after)
    if pair is not None:
        first, last = pair
        items.append(
            Tile(
                f"Accepted at FMR {_short(last.target_fmr or last.fmr)}, held-out people",
                percent(last.tar, 1),
                f"{percent(first.tar, 1)} before, {points(last.tar - first.tar, 1)}",
                _tone(last.tar - first.tar, better_is=1),
            )
        )
    own = report.own_population
    if own is not None:
        change = own.accuracy_after - own.accuracy_before
        items.append(
            Tile(
                f"Accuracy on {own.dataset}, its own population",
                percent(own.accuracy_after),
                f"{percent(own.accuracy_before)} before, {points(change)}",
                _tone(change, better_is=1),
            )
        )
    sent = sum(r.bytes_up for r in report.rounds)
    note = f"mean over {several(report.num_phones, 'phone')} and {several(len(report.rounds), 'round')}"
    if report.reveals:
        note += f"; in clear, by the task's choice: {_listed(report.reveals)}"
    items.append(Tile("Sent by each phone", size(round(sent / report.num_phones)), note))
    return Tiles("headlines", "", tuple(items))


def _last_measurable(before: _Measured, after: _Measured) -> tuple[OperatingPoint, OperatingPoint] | None:
    """Return both models' points at the smallest target FMR that both can show."""
    pairs = [
        (b, a)
        for b, a in zip(before.rows, after.rows, strict=True)
        if isinstance(b, OperatingPoint) and isinstance(a, OperatingPoint)
    ]
    return min(pairs, key=lambda pair: pair[1].target_fmr or 1.0) if pairs else None


def _verification(report: DemoReport, before: _Measured, after: _Measured) -> Table:
    rows = []
    for target, b, a in zip(report.targets, before.rows, after.rows, strict=True):
        change = ""
        if isinstance(b, OperatingPoint) and isinstance(a, OperatingPoint):
            change = points(a.tar - b.tar, 1).removesuffix(" points")
        rows.append((_short(target), _tar(b), _tar(a), change))
    n = after.curve.num_non_mated
    return Table(
        "verification",
        "Verification before and after",
        f"Mated comparisons accepted, of {count(after.curve.num_mated)}, at the threshold that keeps false matches "
        f"among {count(n)} non-mated comparisons at or below the target.",
        columns("Target FMR", f"#{before.result.name}", f"#{after.result.name}", "#Points"),
        tuple(rows),
        note=(
            "All comparisons are of people whom no phone held. Thresholds are chosen on these comparisons: the "
            f"smallest observed score that keeps the target. No false match in {several(n, 'comparison')} would still "
            f"allow a rate of {percent(rule_of_three(n), 3)} (95 %, if they were independent). Samples without a "
            f"template: {before.result.num_fte} before, {after.result.num_fte} after."
        ),
        command=report.reproduce,
        details=_operating_points(report, before, after),
    )


def _operating_points(report: DemoReport, before: _Measured, after: _Measured) -> Table:
    rows = [
        (
            f"{_short(target)} \u00b7 {m.result.name}",
            score(row.threshold),
            fraction(row.num_false_matches, row.num_non_mated),
            percent(row.fmr, 3),
            fraction(row.num_false_non_matches, row.num_mated),
            percent(row.fnmr),
        )
        for i, target in enumerate(report.targets)
        for m in (before, after)
        if isinstance(row := m.rows[i], OperatingPoint)
    ]
    heads = columns("Target FMR \u00b7 model", "#Threshold", "#False matches", "#FMR", "#False non-matches", "#FNMR")
    return Table("counts", "Thresholds and counts", "What each accepted share rests on.", heads, tuple(rows))


def _short(rate: float) -> str:
    return f"{rate * 100:g}\u202f%"


def _tar(row: OperatingPoint | NotMeasurable) -> str:
    if isinstance(row, NotMeasurable):
        return "not measurable"
    return f"{percent(row.tar, 1)} ({count(row.num_mated - row.num_false_non_matches)})"


def _det(report: DemoReport, before: _Measured, after: _Measured, control: _Measured | None) -> Figure:
    shown = [(before, BEFORE), (after, AFTER), *([] if control is None else [(control, CONTROL)])]
    curves = [NamedCurve(m.result.name, m.curve, number) for m, number in shown]
    parts = [f"{m.result.name}: equal error rate {percent(m.eer)}{_interval(m.result)}" for m, _ in shown]
    described = "Detection error trade-off curves of models on held-out people. " + ". ".join(parts) + "."
    return det_figure(curves, "; ".join(parts) + ".", described, command=report.reproduce)


def _interval(result: ModelResult) -> str:
    i = result.eer_interval
    return "" if i is None else f" (95 % interval {percent(i.low)} to {percent(i.high)}, {i.method})"


def _rounds_figure(report: DemoReport, before: _Measured, after: _Measured) -> Figure:
    measured = [(0, before.eer)] + [(r.number, r.eer) for r in report.rounds if r.eer is not None]
    band = Band("Held-out people", tuple(float(n) for n, _ in measured), tuple(e for _, e in measured))
    rows = tuple((str(n), percent(e)) for n, e in measured)
    return Figure(
        "rounds",
        "Round by round",
        (rounds_chart([band], title="Equal error rate"),),
        "Equal error rate of each round's model on held-out people; round 0 is the released model.",
        f"Equal error rate over {several(len(report.rounds), 'round')}, from {percent(before.eer)} to "
        f"{percent(after.eer)}.",
        Table("rounds-table", "By round", "Equal error rate by round", columns("Round", "#EER"), rows),
    )


def _scores(report: DemoReport, after: _Measured) -> Figure:
    models = [
        NamedScores(report.before.name, report.before.comparisons),
        NamedScores(report.after.name, report.after.comparisons, after.eer_threshold),
    ]
    return Figure(
        "scores",
        "Scores",
        score_charts(models),
        "How often each score occurs among comparisons of one person (mated) and of two (non-mated). The dotted line "
        f"is the new model's threshold at equal error, {score(after.eer_threshold)}.",
        "Histograms of mated and non-mated scores before and after; the less they overlap, the better.",
    )


def _phone(phone: PhoneCheck) -> Tiles:
    def tile(who: str, decision: str, value: float, accepted: bool, right: bool) -> Tile:
        relation = "at or above" if accepted else "below"
        detail = f"score {score(value)}, {relation} the threshold {score(phone.threshold)}"
        return Tile(who, decision, detail, "good" if right else "bad")

    owner, stranger = phone.owner_accepted, phone.stranger_accepted
    tiles = (
        tile("Its owner", phone.owner_decision, phone.owner_score, owner, owner),
        tile("A stranger", phone.stranger_decision, phone.stranger_score, stranger, not stranger),
    )
    intro = f"{phone.device} after the last round, with pictures that it had not seen. {phone.threshold_source}"
    return Tiles("phone", "One phone, two people", tiles, intro)


def _costs(report: DemoReport) -> Table:
    def row(number: str, phones: str, rounds: Sequence[RoundCost], outcome: str) -> tuple[str, ...]:
        down, up, took = (sum(getattr(r, n) for r in rounds) for n in ("bytes_down", "bytes_up", "duration_s"))
        cells = (number, phones, size(down), size(up), duration(took))
        return (*cells, outcome) if show_outcome else cells

    show_outcome = any(r.outcome != "closed" for r in report.rounds)
    rows = tuple(row(str(r.number), f"{r.num_reported} of {r.num_asked}", [r], r.outcome) for r in report.rounds)
    return Table(
        "costs",
        "What each round cost",
        "Contributions that the coordinator received, changes of the model that the phones had to fetch, and wall "
        "time; all phones share this machine.",
        columns("Round", "#Phones", "#To phones", "#From phones", "#Time", *(["Outcome"] if show_outcome else [])),
        rows,
        total=row("All", "", report.rounds, ""),
        note=f"Start to finish, with enrolment and evaluation: {duration(report.duration_s)} on {report.machine}.",
        command=report.reproduce,
    )


def _own_population(report: DemoReport) -> Section:
    title = "What it cost elsewhere"
    own = report.own_population
    if own is None:
        return Prose("elsewhere", title, (report.own_population_skipped,))
    return Table(
        "elsewhere",
        title,
        f"The same two models on {own.dataset}, the kind of people that the released model was made for: "
        f"{count(own.num_mated)} mated and {count(own.num_non_mated)} non-mated pairs.",
        columns("Model", "#Accuracy", "#Without template"),
        (
            (report.before.name, percent(own.accuracy_before), count(own.num_fte)),
            (report.after.name, percent(own.accuracy_after), count(own.num_fte)),
        ),
        note=f"{own.protocol}. Change: {points(own.accuracy_after - own.accuracy_before)}. {own.terms}",
        command=report.reproduce,
    )


def _provenance(report: DemoReport) -> Facts:
    people = tuple(
        (p.role, f"{several(p.num_identities, 'person', 'people')}, {several(p.num_images, 'image')} of {p.dataset}")
        for p in report.populations
    )
    return Facts(
        "made",
        "How this was made",
        (
            *people,
            *report.settings,
            ("Model before", report.before.model_id),
            ("Model after", report.after.model_id),
            ("Revealed besides the sum", _listed(report.reveals) or "nothing by the task's choice"),
            (
                "Masking",
                "on: the coordinator sees the sum of a cohort, no single contribution"
                if report.masked
                else "off: the coordinator can read each phone's contribution before it sums them",
            ),
            ("Seed", str(report.seed)),
            ("Machine", report.machine),
            ("Commit", report.commit),
            ("Command", report.reproduce),
        ),
    )
