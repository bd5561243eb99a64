"""What the dashboard makes of measurements as the programs that measure write them, and of what it does not know."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.dashboard.reading import Reader
from coordinator.dashboard.views import collapse, models
from coordinator.release.gates_worker import _summary
from mien.contribution import Total
from mien.evaluation import Evidence, judge
from mien.evaluation.fleet import addends, phone_comparisons
from mien.format import percent
from mien.methods import federated_evaluation
from mien.protocol.canonical import to_canonical_json
from mien.rounds.records import CandidateRecord, CandidateState
from mien.rounds.thresholds import thresholds_of
from mien.shell.pages import Empty, Figure, Page, Table
from mien.specs import GateSpec, TaskSpec
from simulation.faces.folder_protocol import evaluate_folder
from simulation.faces.models import Model
from simulation.program.evaluate import evaluate_lfw
from simulation.program.gating import EvaluationSet, gather
from simulation.synthetic import committed_faces
from simulation.testing import LAYOUT, THETA
from tests.coordinator.dashboard.made_up import Fleet
from tests.coordinator.dashboard.test_views import part, texts
from tests.simulation.program.test_worker import people_in
from tests.simulation.untrained import untrained_model

GATES = GateSpec(fmr=0.1, max_change=1e6)


class Shown:
    """A coordinator with one released model, and the pages that show its measurements."""

    def __init__(self, fleet: Fleet, reader: Reader) -> None:
        self.fleet, self._reader = fleet, reader
        self.now_ms = round(fleet.end.timestamp() * 1000)
        self.model = fleet.add_model("measured").model_id
        fleet.store.release(self.model, population=None, actor="alice")

    def keep(self, record: Mapping[str, Any]) -> None:
        """Keep a record as the coordinator does; all three pages must stand."""
        self.fleet.keep(self.model, record)
        self.pages()

    def pages(self) -> tuple[Page, Page, Page]:
        """Return the pages of the model, of all models, and of collapse."""
        return (
            self._reader.ask(lambda db: models.model_page(db, self.model, self.now_ms)),
            self._reader.ask(lambda db: models.model_list(db, self.now_ms)),
            self._reader.ask(lambda db: collapse.collapse_page(db, self.now_ms)),
        )

    @property
    def results(self) -> list[str]:
        """Return the results in the model's table of measurements, newest first."""
        return texts(part(self.pages()[0], "measurements", Table), "Result")

    def check_points(self, record: Mapping[str, Any], fnmrs: list[float]) -> None:
        """Let both pages draw and list operating points of these false non-match rates."""
        one, several, _ = self.pages()
        for page in (one, several):
            det = part(page, "det", Figure)
            assert texts(det.table, "FNMR") == [f"{fnmr:.4f}" for fnmr in fnmrs]
            assert 'class="dot s1"' in det.drawing
        over = part(several, "tar-1", Figure)
        assert over.title == f"TAR over releases, on {record['dataset']}"
        assert [cell.text for cell in over.table.rows[0][2:]] == [percent(1 - fnmr) for fnmr in fnmrs]
        rates = [percent(1 - fnmr, 1) for fnmr in fnmrs]
        assert re.findall(r"(\S+\s%) at ", self.results[0]) == rates
        assert f"EER {percent(record['eer'])}" in self.results[0]


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    fleet = Fleet(tmp_path / "house")
    reader = Reader.open(fleet.home.database_url(fleet.home.resolve().config))
    yield Shown(fleet, reader)
    reader.close()
    fleet.close()


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return people_in(tmp_path_factory.mktemp("people") / "rendered", 10, 3)


@pytest.fixture(scope="module")
def folder_record(people: Path) -> dict[str, Any]:
    return evaluate_folder(untrained_model(), people)


def measured_fnmrs(record: Mapping[str, Any]) -> list[float]:
    return [point["fnmr"] for point in record["points"] if "threshold" in point]


def test_a_folder_as_the_worker_measures_it(shown: Shown, folder_record: dict[str, Any]) -> None:
    assert len(thresholds_of({**folder_record, "model_id": "m"}, shown.fleet.end)) == 1
    shown.keep(folder_record)
    shown.check_points(folder_record, measured_fnmrs(folder_record))
    measured = part(shown.pages()[0], "measurements", Table).rows[0]
    assert (measured[0].text, measured[0].note) == ("rendered", "folder-all-pairs 1")
    assert (measured[2].text, measured[3].text) == ("30 / 405", "0")
    rank = folder_record["monitors"]["effective_rank"]
    assert texts(part(shown.pages()[2], "rank-1", Figure).table, "Effective rank") == [f"{rank:.3f}"]


def test_lfw_as_the_worker_measures_it(shown: Shown, tmp_path: Path) -> None:
    (first, faces), (second, others), *_ = committed_faces("test").items()
    for name, files in ((first, faces), (second, others)):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number, file in enumerate(files[:3], 1):
            shutil.copy(file, folder / f"{name}_{number:04d}.jpg")
    fold = f"{first}\t1\t2\n{second}\t1\t2\n{first}\t1\t{second}\t3\n{first}\t2\t{second}\t1\n"
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "pairs.txt").write_text(f"2\t2\n{fold}{fold}")
    record = evaluate_lfw(untrained_model(), tmp_path)
    shown.keep(record)
    assert shown.results == [f"accuracy {percent(record['accuracy'])}"]
    one, several, _ = shown.pages()
    assert part(one, "measurements", Table).rows[0][0].text == "LFW View 2"
    assert part(several, "quality", Empty).text.endswith("error rate to draw yet.")


def verdict_of(shown: Shown, evidence: Evidence) -> dict[str, Any]:
    reasons = judge(GATES, evidence)
    candidate = CandidateRecord(shown.model, "task", 1, CandidateState.WAITING, shown.now_ms)
    return _summary(GATES, candidate, shown.fleet.store.model(shown.model), evidence, reasons)


def test_a_candidate_as_its_gates_measure_it(shown: Shown, people: Path) -> None:
    rendered = EvaluationSet("rendered", people, aligned=False)
    evidence, records = gather(GATES, untrained_model(), untrained_model(1), [rendered])
    for record in (*records, verdict_of(shown, evidence)):
        shown.keep(record)
    shown.check_points(records[0], measured_fnmrs(records[0]))
    (row,) = part(shown.pages()[0], "verdicts", Table).rows
    (found,) = evidence.sets
    assert found.candidate is not None
    assert found.candidate_tar is not None
    assert (row[0].text, row[1].text) == ("rendered", "failed" if judge(GATES, evidence) else "passed")
    assert (row[2].text, row[2].note) == (percent(found.candidate_tar), f"released {percent(found.reference_tar)}")
    assert row[3].text == f"{found.candidate.effective_rank:.1f}"
    least = part(shown.pages()[2], "limits", Table)
    assert texts(least, "Least effective rank") == [f"{GATES.min_rank_share * found.reference.effective_rank:.1f}"]


def test_candidates_of_which_gates_have_no_figures(shown: Shown, people: Path) -> None:
    model = untrained_model()
    dead = Model(model.spec, model.layout, np.zeros_like(model.theta))
    evidence, records = gather(GATES, model, dead, [EvaluationSet("rendered", people, aligned=False)])
    assert records == []
    shown.keep(verdict_of(shown, evidence))
    shown.keep(verdict_of(shown, Evidence(is_finite=False, change=0.0, sets=())))
    blown, collapsed = part(shown.pages()[0], "verdicts", Table).rows
    assert (blown[0].text, blown[1].text, blown[1].note) == ("no set", "failed", "its parameters are not finite")
    assert (collapsed[1].text, collapsed[2].text, collapsed[3].text) == ("failed", "–", "–")
    assert collapsed[2].note.startswith("released ")


@pytest.mark.parametrize("is_paired", [False, True])
def test_a_fleet_as_its_phones_measure_it(shown: Shown, is_paired: bool) -> None:
    options: dict[str, Any] = {"threshold": 0.3, "bins": 200}
    if is_paired:
        options |= {"reference": "ab" * 32, "reference_threshold": 0.3}
    task = TaskSpec(
        "asked", method="federated_evaluation", rounds=1, options=options,
        privacy=federated_evaluation.privacy_of(min_cohort=8, is_paired=is_paired, bins=200),
    )  # fmt: skip
    part_ = LAYOUT.part(("tail.*",))
    layout = federated_evaluation.contribution_layout(task, part_, 8)
    total = np.zeros(layout.summed_size)
    one = np.ones(1, np.float32)
    for phone in range(8):
        rng = np.random.default_rng(phone)
        person = rng.standard_normal((2, 32))
        own = np.repeat(person, 4, axis=0) + 0.9 * rng.standard_normal((8, 32))
        scores = phone_comparisons(own, np.repeat([0, 1], 4), rng.standard_normal((600, 32)))
        compared = [scores, scores] if is_paired else [scores]
        said = addends(compared, (0.3, 0.3)[: len(compared)], bins=200)
        total += layout.pack({"count": one, "weight": one, **said}).summed
    start = federated_evaluation.server_start(task, part_, THETA)
    state = federated_evaluation.server_step(task, part_, start, Total(layout, total, 8), {})
    record = federated_evaluation.measured(task, state)
    points = record["figures"]["model"]["points"]
    assert len(points) > 1
    shown.keep(record)
    shown.check_points(record, [1 - point["tar"]["value"] for point in points])
    measured = part(shown.pages()[0], "measurements", Table).rows[0]
    assert (measured[0].text, measured[3].text) == ("fleet of population default", "–")


ODD: list[Any] = [
    None, True, -1, 7, 10**400, "", "x", [], ["x"], [None], [[]], {}, {"x": 1}, [{"threshold": 0.5}],
    [{"threshold": "x", "target_fmr": [], "fmr": {}, "fnmr": None}], [{"name": 3, "candidate": [], "reference": "x"}],
]  # fmt: skip


def test_records_that_nobody_knows_are_listed_as_such(shown: Shown, folder_record: dict[str, Any]) -> None:
    """Every field of every form in turn is missing or something else; a page says less then, and never fails."""
    shown.keep({})
    shown.keep({"protocol": "tomorrow's", "protocol_version": "9", "fnir": 0.02})
    assert shown.results == ["in a form that this dashboard does not know; model show --json has it"] * 2
    one = part(shown.pages()[0], "measurements", Table).rows[0]
    assert (one[0].text, one[0].note, one[2].text) == ("–", "tomorrow's 9", "– / –")
    fleet = {"protocol": "fleet", "dataset": "phones", "figures": {"model": {"points": []}}}
    evidence = {"name": "s", "reference_tar": 0.9, "reference": dict(folder_record["monitors"])}
    gates = {"protocol": "gates", "passed": True, "reasons": [], "gates": {"min_rank_share": 0.5,
             "max_cosine_rise": 0.1}, "evidence": {"sets": [evidence]}}  # fmt: skip
    for form in (folder_record, fleet, gates):
        for name in form:
            for odd in ODD:
                shown.fleet.keep(shown.model, {**form, name: odd})
            shown.fleet.keep(shown.model, {key: value for key, value in form.items() if key != name})
    for odd in ODD:
        for record in ({"protocol": "fleet", "figures": {"model": odd}},
                       {"protocol": "fleet", "figures": {"model": {"points": odd}}},
                       {"protocol": "gates", "evidence": {"sets": odd}, "gates": {"min_rank_share": odd}}):  # fmt: skip
            shown.fleet.keep(shown.model, record)
    for kept in (b"[]", b"7", to_canonical_json("words")):
        shown.fleet.store.add_evaluation(shown.model, kept, actor="mallory")
    for page in shown.pages():
        assert page.sections
