"""Model card: what a model is, what was measured of it on whom, what never was, and how it was trained.

It holds what the coordinator's record says and nothing else (Mitchell et al. 2019, "Model Cards for Model Reporting");
the same record gives the same card, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from coordinator.operator.disclosure import disclosures
from mien.evaluation.fairness import MAX_FMR_RATIO
from mien.format import count, moment, percent, several
from mien.models.unmeasured import ALWAYS_UNMEASURED, never_measured
from mien.protocol.canonical import model_from_json, parse_json
from mien.records import to_mapping
from mien.rounds.records import BundleRecord, EvaluationRecord, ModelRecord
from mien.rounds.releases import Standing
from mien.rounds.thresholds import group_rates_of
from mien.shell.pages import Alert, Alerts, Cell, Cells, Empty, Facts, Prose, Report, Section, Table, columns
from mien.specs import GroupRate, TaskSpec

INTENDED: Final = (
    "To verify that a face is that of a person who enrolled, on the phone of those people and with their consent.",
    "To name one of the people enrolled there, at a stated rate of strangers who are named (mien-device identify).",
)
NOT_INTENDED: Final = (
    "To look for people who did not enrol, in crowds, films or collections of pictures.",
    "To open or unlock anything by itself: a photograph of a face matches, for no liveness check comes with a model.",
    "To tell age, sex, origin, health or mood, or anything else than whether two pictures show one face.",
    "To decide alone about people's rights or money: a score is no probability, and rates differ between groups.",
)
_VERDICTS: Final[Mapping[str, Cell]] = {
    "measured": Cell("measured", tone="good"),
    "exceeds": Cell("too high", tone="bad"),
    "too_small": Cell("too small to tell", tone="warn"),
}


@dataclass(frozen=True)
class Training:
    """Part of a task in a model: the rounds up to the one that made it, and what their sums may tell.

    `epsilon` is what the task's opened sums spent by themselves at `task.privacy.dp.delta`; None is unbounded.
    """

    task_id: str
    task: TaskSpec
    rounds: int
    num_sums: int
    phones: tuple[int, int] | None
    epsilon: float | None


@dataclass(frozen=True)
class ModelCard:
    """Everything that a coordinator has on record of one model; `trainings` are the oldest first."""

    model: ModelRecord
    standing: Standing
    bundle: BundleRecord | None
    trainings: tuple[Training, ...]
    origin: str
    evaluations: tuple[EvaluationRecord, ...] = field(repr=False)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Measurements of faces, the newest of each protocol, data set and attributes, in the order of their making."""
        newest: dict[tuple[str, ...], dict[str, Any]] = {}
        for each in self.evaluations:
            record = parse_json(each.record_json, what="an evaluation's record")
            if not isinstance(record, dict) or "dataset" not in record or "protocol" not in record:
                continue
            attributes = sorted({rate["attribute"] for rate in (record.get("groups") or {}).get("rates", ())})
            key = (str(record["protocol"]), str(record["dataset"]), *attributes)
            newest.pop(key, None)
            newest[key] = {**record, "made_ms": each.made_ms, "made_by": each.made_by}
        return list(newest.values())

    def group_rates(self) -> list[GroupRate]:
        """Return the rates of all groups that were measured."""
        return [
            rate
            for record in self.records
            for rate in group_rates_of(record, datetime.fromtimestamp(record["made_ms"] / 1000, UTC))
        ]


def to_plain(card: ModelCard) -> dict[str, Any]:
    """Return a card as plain data."""
    spec, layout = model_from_json(card.model.spec_json)
    return {
        "model_id": card.model.model_id,
        "backbone": spec.backbone,
        "source": spec.source,
        "terms": spec.terms,
        "parameters": layout.size,
        "state": card.standing.state.value,
        "created_unix_s": card.model.created_ms // 1000,
        "signed_as": None if card.bundle is None else card.bundle.sequence,
        "intended": list(INTENDED),
        "not_intended": list(NOT_INTENDED),
        "thresholds": [to_mapping(each) for each in spec.thresholds],
        "groups": [to_mapping(each) for each in spec.groups or ()],
        "measured": card.records,
        "never_measured": [*never_measured(card.group_rates()), *ALWAYS_UNMEASURED],
        "made_of": card.origin,
        "training": [
            {
                "task_id": each.task_id,
                "task": to_mapping(each.task),
                "rounds": each.rounds,
                "sums": each.num_sums,
                "phones": each.phones and list(each.phones),
                "epsilon": each.epsilon,
                "discloses": disclosures(each.task),
            }
            for each in card.trainings
        ],
    }


def card_report(card: ModelCard) -> Report:
    """Return a card as a page."""
    spec, _ = model_from_json(card.model.spec_json)
    short = card.model.model_id[:12]
    return Report(
        f"Model card: {spec.backbone} {short}",
        "What this face recogniser is, what was measured of it and on whom, and what nobody measured.",
        (
            _warnings(card),
            _what(card),
            Prose("intended", "What it is for", INTENDED, is_list=True),
            Prose("not-intended", "What it is not for", NOT_INTENDED, is_list=True),
            *_measurements(card.records),
            _thresholds(card),
            *(section for n, record in enumerate(card.records, 1) for section in _groups(record, n)),
            _never(card),
            *_training(card),
        ),
        (f"Written by mien-coordinator model card {short} from the coordinator's record; no picture and no template.",),
    )


def _warnings(card: ModelCard) -> Alerts:
    rates = card.group_rates()
    alerts = [
        Alert("bad", f"Group {warning}, on {record['dataset']}.")
        for record in card.records
        for warning in (record.get("groups") or {}).get("warnings", ())
    ]
    unmeasured = never_measured(rates)
    vulnerable = [each for each in unmeasured if each.startswith(("children", "twins"))]
    alerts += [Alert("warn", f"Not for {each}: nobody measured them.") for each in vulnerable]
    if not rates:
        alerts.append(Alert("warn", "No group of people was measured by itself: the rates below are of all together."))
    return Alerts("warnings", "Before you use it", tuple(alerts), "Every group that was measured keeps its rate.")


def _what(card: ModelCard) -> Facts:
    spec, layout = model_from_json(card.model.spec_json)
    signed = "not signed" if card.bundle is None else f"signed as release {card.bundle.sequence}"
    share = f", to {percent(card.standing.share, 0)} of the phones" if card.standing.state.value == "released" else ""
    return Facts(
        "what",
        "What it is",
        (
            ("Id", Cell(card.model.model_id, is_code=True)),
            ("Recogniser", spec.backbone),
            ("Takes", f"an aligned face of {spec.input.width}×{spec.input.height} pixels, {spec.input.colour}"),
            ("Gives", f"{several(spec.input.dim, 'number')}, compared by cosine"),
            ("Parameters", count(layout.size)),
            ("Came in", f"{moment(card.model.created_ms)} UTC"),
            ("State", f"{card.standing.state.value}{share}; {signed}"),
            ("Source", spec.source),
            ("Terms", spec.terms),
        ),
        note="Data sets have terms of their own: figures on those for research say nothing of a right to use them.",
    )


def _measurements(records: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    if not records:
        yield Empty("measured", "What was measured", "Nothing was measured of it yet.")
        return
    rows = [_summary(record) for record in records]
    heads = columns("Data set", "Protocol", "#People", "#Images", "#No face", "#Mated / non-mated", "Result")
    note = "No face: pictures without a template; left out, or by the lists of pairs (LFW) counted as errors."
    yield Table("measured", "What was measured", "The newest measurement of each kind", heads, tuple(rows), note)
    points = tuple(row for record in records for row in _points(record))
    if points:
        heads = columns("Data set", "Target FMR", "#Threshold", "#FMR", "#False matches", "#FNMR", "#False non-matches")
        yield Table("points", "Errors at each threshold", "Where each false match rate is kept", heads, points)


def _summary(record: Mapping[str, Any]) -> Cells:
    results = [
        f"{name} {percent(record[key])}" for key, name in (("accuracy", "accuracy"), ("eer", "EER")) if key in record
    ]
    if "standard_error" in record:
        results.append(f"standard error {percent(record['standard_error'])}")
    told = (number(record.get(name)) for name in ("identities", "images", "fte"))
    return (
        Cell(
            str(record["dataset"]),
            note=f"{str(record.get('dataset_sha256', ''))[:12]}; {moment(record['made_ms'])} UTC",
        ),
        f"{record['protocol']}, version {record.get('protocol_version', '?')}",
        *told,
        f"{number(record.get('mated'))} / {number(record.get('non_mated'))}",
        "; ".join(results) or "–",
    )


def _points(record: Mapping[str, Any]) -> Iterator[Cells]:
    for point in record.get("points", ()):
        target = f"{point['target_fmr']:g}"
        if "threshold" not in point:
            yield (str(record["dataset"]), target, "–", f"not measurable: {point['not_measurable']}", "–", "–", "–")
            continue
        group = point.get("group")
        yield (
            Cell(str(record["dataset"]), note=f"{group['attribute']} {group['group']}" if group else ""),
            target,
            f"{point['threshold']:.4f}",
            f"{point['fmr']:.2g}",
            f"{count(point['num_false_matches'])} of {count(point['num_non_mated'])}",
            f"{point['fnmr']:.2g}",
            f"{count(point['num_false_non_matches'])} of {count(point['num_mated'])}",
        )


def _thresholds(card: ModelCard) -> Section:
    spec, _ = model_from_json(card.model.spec_json)
    if not (own := [each for each in spec.thresholds if each.model_id == card.model.model_id]):
        return Empty("thresholds", "Thresholds that phones get", "None: phones that have it recognise nobody.")
    rows = tuple(
        (f"{each.fmr:.2g}", f"{each.value:.4f}", each.dataset, count(each.num_non_mated), each.date) for each in own
    )
    heads = columns("At FMR", "#Threshold", "Measured on", "#Non-mated", "Date")
    note = (
        "A phone accepts from this cosine on; its owner's limits say at which rate. Templates: for galleries of many."
    )
    return Table("thresholds", "Thresholds that phones get", "Kept in the model's description", heads, rows, note)


def _groups(record: Mapping[str, Any], number_: int) -> Iterator[Table]:
    if not (told := record.get("groups")):
        return
    worst = told.get("worst_group")
    whose = f"the worst group, {worst['attribute']} {worst['group']}" if worst else "all people"
    caption = (
        f"At the threshold {told['threshold']:.4f}, set for FMR {told['target_fmr']:g} of {whose}. Each rate with its "
        "95 % interval (identities drawn again, not comparisons) and its counts."
    )
    rows = tuple(
        (
            Cell(f"{each['attribute']} {each['group']}", note=each["reason"]),
            count(each["people"]),
            _rate_cell(each["fmr"]),
            _rate_cell(each["fnmr"]),
            _rate_cell(each["fte"]),
            _VERDICTS.get(each["verdict"], Cell(str(each["verdict"]))),
        )
        for each in told["rates"]
    )
    not_stated = [
        f"{several(people, 'person states', 'people state')} no {name}"
        for name, people in told["not_stated"].items()
        if people
    ]
    note = "; ".join([f"Too high: more than {MAX_FMR_RATIO:g} times the target", *not_stated]) + "."
    title = f"By group, on {record['dataset']}"
    heads = columns("Group", "#People", "#FMR", "#FNMR", "#No face", "Verdict")
    yield Table(f"groups-{number_}", title, caption, heads, rows, note)
    if told["between"]:
        pairs = tuple(
            (f"{each['attribute']} {each['first']}", str(each["second"]), _rate_cell(each["fmr"]))
            for each in told["between"]
        )
        heads = columns("One of", "With one of", "#FMR")
        yield Table(f"between-{number_}", f"Between groups, on {record['dataset']}", caption, heads, pairs)


def _rate_cell(rate: Mapping[str, Any] | None) -> Cell:
    if rate is None:
        return Cell("–")
    interval = rate["interval"]
    bounds = f"{interval['low']:.2g} to {interval['high']:.2g}; " if interval else ""
    return Cell(f"{rate['rate']:.2g}", note=f"{bounds}{count(rate['errors'])} of {count(rate['of'])}")


def _never(card: ModelCard) -> Prose:
    told = [*never_measured(card.group_rates()), *ALWAYS_UNMEASURED]
    return Prose("never", "What was never measured", tuple(f"Not measured: {each}." for each in told), is_list=True)


def _training(card: ModelCard) -> Iterator[Section]:
    if not card.trainings:
        text = "It was imported, and no phone of this coordinator trained it. How it was made, its source has to say."
        yield Prose("training", "How it was trained", (text,))
        return
    yield Prose("training", "How it was trained", (f"It began as {card.origin}, and phones trained it further.",))
    for number_, each in enumerate(card.trainings, 1):
        privacy = each.task.privacy
        phones = "–" if each.phones is None else f"{count(each.phones[0])} to {count(each.phones[1])}"
        items = (
            ("Method", each.task.method),
            ("Rounds", f"{count(each.rounds)} of {count(each.task.rounds)}"),
            ("Population", each.task.population),
            ("Sums opened", Cell(count(each.num_sums), note=f"phones in a sum: {phones}")),
            ("Secure aggregation", privacy.secure_aggregation.replace("_", " ")),
            ("Shown besides sums", ", ".join(privacy.reveals) or "nothing"),
            ("Differential privacy", _privacy(each)),
        )
        title = f"Task {each.task.name}"
        yield Facts(f"task-{number_}", title, items, note=" ".join(disclosures(each.task)))


def _privacy(training: Training) -> str:
    dp = training.task.privacy.dp
    if not dp.is_on:
        return "none: no epsilon bounds what the sums tell"
    spent = "unbounded" if training.epsilon is None else f"{training.epsilon:.4g}"
    told = f"{dp.mechanism.replace('_', ' ')}, noise {dp.noise_multiplier:g}"
    return f"{told}; this task spent epsilon {spent}, its population may spend {dp.epsilon:g}, at delta {dp.delta:g}"


def number(value: Any) -> str:
    """Return a count of a record; a dash where it has none."""
    return count(value) if isinstance(value, int) and not isinstance(value, bool) else "–"
