"""What pages say, against what the made-up fleet did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.dashboard.chain import ChainState, RoundLogState, look_on, look_on_rounds
from coordinator.dashboard.reading import Reader
from coordinator.dashboard.situation import Situation
from coordinator.dashboard.views import audit, collapse, hours, models, overview, privacy, round_log, rounds, tasks
from coordinator.dashboard.views import fleet as fleets
from coordinator.dashboard.views.alerts import alerts
from coordinator.dashboard.words import short
from coordinator.operator.readiness import Waiting
from coordinator.store import round_log as store_log
from coordinator.store.report import report
from coordinator.store.store import Store
from coordinator.store.tables import CANDIDATES, PARTICIPANTS, REPLICAS, ROLL_OUTS, ROUNDS, TASKS
from mien.errors import NotFoundError, UnreachableError
from mien.evaluation.rollout_spec import RollOutSpec
from mien.format import percent
from mien.log.checkpoints import WITNESS, NoteSigner
from mien.log.entries import certificate_entry
from mien.protocol.canonical import task_to_json
from mien.rounds.records import CandidateRecord, CandidateState, TaskRecord, TaskState
from mien.rounds.rollouts import spec_to_json
from mien.shell.doctor import Finding
from mien.shell.pages import Alerts, Cell, Chart, Columns, Empty, Facts, Figure, Page, Pager, Table, Tiles
from mien.specs import CohortSpec, MustInclude, TaskSpec
from tests.coordinator.dashboard.made_up import DP, MEASURED, Fleet, device_id, model_id, people_measured

S = TypeVar("S")


@pytest.fixture(scope="module")
def reader(fleet: Fleet) -> Iterator[Reader]:
    reader = Reader.open(fleet.home.database_url(fleet.home.resolve().config))
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def now_ms(fleet: Fleet) -> int:
    return round(fleet.end.timestamp() * 1000)


@pytest.fixture(scope="module")
def chain(reader: Reader) -> ChainState:
    return look_on(ChainState(), reader.ask)


def situation(now_ms: int, *checks: Finding) -> Situation:
    return Situation(now_ms, checks or (Finding("disk", "9 GB free"),), ChainState(), 7, "list 41 of the registrar")


def part(page: Page, anchor: str, kind: type[S]) -> S:
    """Return a section by its anchor."""
    inner = [item for section in page.sections if isinstance(section, Columns) for item in section.items]
    (found,) = [section for section in (*page.sections, *inner) if section.anchor == anchor]
    assert isinstance(found, kind)
    return found


def texts(table: Table, column: str) -> list[str]:
    index = [each.label for each in table.columns].index(column)
    return [row[index].text for row in table.rows]


def cell(table: Table, row: str, column: str) -> Cell:
    index = [each.label for each in table.columns].index(column)
    return next(cells[index] for cells in table.rows if cells[0].text == row)


def task_id(reader: Reader, name: str, now_ms: int) -> str:
    table = part(reader.ask(lambda db: tasks.task_list(db, now_ms)), "tasks", Table)
    return cell(table, name, "Task").href.removeprefix("/tasks/")


def test_the_overview_counts_phones_and_names_what_wants_an_operator(reader: Reader, now_ms: int) -> None:
    known = reader.ask(lambda db: fleets.read(db, now_ms))
    assert (known.known, [each.known for each in known.populations]) == (459, [9, 412, 38])
    assert sum(known.by_hour) <= known.day <= sum(each.week for each in known.populations) <= 459
    error = UnreachableError("no recent revocation list, so phones are refused; start the registrar")
    fault = Finding("revocations", error.message, error)
    page = reader.ask(lambda db: overview.overview(db, situation(now_ms, fault), known))
    found = part(page, "alerts", Alerts).items
    assert [alert.tone for alert in found] == ["bad", "warn"]
    assert found[0].text.startswith("Revocations: no recent")
    assert "autumn is paused: 5 attempts in a row were aborted" in found[1].text
    assert "mend that, then task resume" in found[1].text
    assert found[1].command == "mien-coordinator task resume autumn"
    autumn = cell(part(page, "running", Table), "autumn", "Round")
    assert (autumn.text, autumn.note) == ("aborted", "round 1, attempt 5")  # as the alert says
    running = part(page, "running", Table)
    assert cell(running, "spring", "Round").text == "upload"
    assert cell(running, "spring", "Progress").text == "12 of 20 rounds"
    assert "Task spring: round 12 closed" not in texts(part(page, "latest", Table), "What")[0]  # newer things are there


def test_an_empty_coordinator_says_what_to_do(tmp_path: Path) -> None:
    new = Fleet(tmp_path)
    reader = Reader.open(new.home.database_url(new.home.resolve().config))
    try:
        now_ms = round(new.end.timestamp() * 1000)
        known = reader.ask(lambda db: fleets.read(db, now_ms))
        first = reader.ask(lambda db: overview.overview(db, situation(now_ms), known))
        assert "device invite" in part(first, "phones", Empty).commands[0]
        assert part(first, "alerts", Alerts).items[0].command == "mien-coordinator model import FILE --release"
        pages = [
            (reader.ask(lambda db: tasks.task_list(db, now_ms)), "tasks", "task submit"),
            (reader.ask(lambda db: models.model_list(db, now_ms)), "models", "model import"),
            (reader.ask(lambda db: collapse.collapse_page(db, now_ms)), "monitors", "model evaluate"),
            (privacy.privacy_page(reader.ask(report)), "ledger", "task submit"),
        ]
        for page, anchor, command in pages:
            assert command in part(page, anchor, Empty).commands[0]
    finally:
        reader.close()
        new.close()


@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        (None, "gathering 20 phones, a labelled source among them (with metrics_port"),
        (Waiting(17, 0), "gathering: 17 of 20, since 3 min; waiting for a labelled source"),
        (Waiting(17, 1), "gathering: 17 of 20, since 3 min"),
    ],
)
def test_a_round_that_waits_for_its_source_says_so(tmp_path: Path, waiting: Waiting | None, told: str) -> None:
    fleet = Fleet(tmp_path)
    reader = Reader.open(fleet.home.database_url(fleet.home.resolve().config))
    try:
        base, began_ms = fleet.add_model("imported").model_id, fleet.clock.now_ms()
        spec = TaskSpec("uda", method="fedfr_uda", cohort=CohortSpec(20, 16, must_include=MustInclude()))
        record = TaskRecord(
            "ab" * 8, "uda", "default", task_to_json(spec), "", TaskState.RUNNING, base, base, "alice", began_ms
        )
        fleet.store.open_attempt(fleet.store.add_task(record), round_number=1, attempt=1, deadline=fleet.clock.now())
        now = situation(began_ms + 200_000)
        if waiting is not None:
            now = replace(now, waiting={("uda", "default"): waiting})
        known = reader.ask(lambda db: fleets.read(db, now.now_ms))
        page = reader.ask(lambda db: overview.overview(db, now, known))
        note = cell(part(page, "running", Table), "uda", "Round").note
        assert note.startswith(f"round 1, attempt 1; {told}")
        assert ("labelled source" in note) == (waiting != Waiting(17, 1))
        nobody = part(reader.ask(lambda db: rounds.round_page(db, "ab" * 8, 1, 1, now.now_ms)), "phones", Empty)
        assert "does not begin without 1 or more with labelled faces" in nobody.text
        settings = dict(part(reader.ask(lambda db: tasks.task_page(db, "ab" * 8, now.now_ms)), "settings", Facts).items)
        assert "labelled sources among them: 1 or more" in settings["Cohort"].text
    finally:
        reader.close()
        fleet.close()


def test_a_task_shows_attempts_course_and_what_it_reveals(reader: Reader, now_ms: int) -> None:
    page = reader.ask(lambda db: tasks.task_page(db, task_id(reader, "spring", now_ms), now_ms))
    table = part(page, "rounds", Table)
    assert len(table.rows) == 15  # 12 closed, two of them at the second attempt, and one under way
    assert texts(table, "Outcome").count("aborted") == 2
    course = part(page, "reports", Figure)
    assert len(course.table.rows) == 12
    assert course.description == "In round 12, of 26 phones chosen 20 trained and 20 are in the sum."
    assert [name for _, name in part(page, "metric-loss-before", Figure).legend] == [
        "loss before training", "loss after training"
    ]  # fmt: skip
    assert texts(part(page, "candidates", Table), "Gates") == ["passed", "failed", "passed"]
    assert page.commands[1:] == ("mien-coordinator task pause spring", "mien-coordinator task cancel spring")


def test_a_round_shows_its_stages_and_who_was_lost_and_why(reader: Reader, now_ms: int) -> None:
    spring = task_id(reader, "spring", now_ms)
    page = reader.ask(lambda db: rounds.round_page(db, spring, 12, 1, now_ms))
    stages = part(page, "stages", Table)
    assert texts(stages, "Stage") == [
        "selecting", "training", "keys", "shares", "upload", "consistency", "unmask", "closing"
    ]  # fmt: skip
    measured = [row[1].bar for row in stages.rows]
    assert sum(bar.length for bar in measured if bar is not None) == pytest.approx(1.0, abs=1e-3)
    assert all(bar is not None for bar in measured)
    phones = part(page, "phones", Table)
    assert texts(phones, "Phones") == ["26", "20", "20", "20", "20", "20", "20"]
    lost = part(page, "lost", Table)
    assert sorted(texts(lost, "Why"))[:3] == ["enough had trained before"] * 3
    assert {"late", "non finite", "unreachable"} <= set(texts(lost, "Why"))
    assert part(page, "summary", Facts).items[2] == (
        "Updates received",
        Cell("1.32\u202fMB", note="66.0\u202fkB from each phone"),
    )
    again = part(reader.ask(lambda db: rounds.round_page(db, spring, 9, 1, now_ms)), "attempts", Table)
    assert texts(again, "Outcome") == ["aborted", "closed"]
    open_now = part(reader.ask(lambda db: rounds.round_page(db, spring, 13, 1, now_ms)), "stages", Table)
    assert open_now.rows[-1][2].text.endswith("so far")
    for wrong in ((spring, 14, 1), (spring, 12, 2), ("0" * 16, 1, 1)):
        with pytest.raises(NotFoundError):
            reader.ask(lambda db, wrong=wrong: rounds.round_page(db, *wrong, now_ms))


def test_no_page_names_a_phone_by_its_whole_id(reader: Reader, now_ms: int, chain: ChainState) -> None:
    spring = task_id(reader, "spring", now_ms)
    known = reader.ask(lambda db: fleets.read(db, now_ms))
    pages = [
        reader.ask(lambda db: overview.overview(db, situation(now_ms), known)),
        *(reader.ask(lambda db, n=n: rounds.round_page(db, spring, n, 1, now_ms)) for n in range(1, 14)),
        reader.ask(lambda db: audit.audit_page(db, audit.Query(), chain, ())),
    ]
    shown = " ".join(map(repr, pages))
    assert not [number for number in range(700) if device_id(number) in shown]


def test_models_show_quality_releases_and_the_roll_out(reader: Reader, now_ms: int) -> None:
    page = reader.ask(lambda db: models.model_list(db, now_ms))
    in_force = part(page, "in-force", Table)
    assert texts(in_force, "Share of phones") == ["10\u202f%", "90\u202f%"]
    assert texts(part(page, "history", Table), "What").count("rolled back to") == 1
    tar = part(page, "tar-1", Figure)
    first, better, best = (people_measured(gain=gain, dims=64).record["points"] for gain in (0.0, 0.06, 0.18))
    over = [percent(1 - points[2]["fnmr"]) for points in (first, better, better, first, better, best)]
    assert len(set(over)) == 3
    assert texts(tar.table, "TAR at FMR 0.001") == over
    det = part(page, "det", Figure)
    assert [name.split(" (")[0] for _, name in det.legend[:2]] == ["rolling out", "released"]
    assert texts(det.table, "FNMR")[:4] == [f"{point['fnmr']:.4f}" for point in best]
    states = {row[0].text: row[1].text for row in part(page, "models", Table).rows}
    assert states[model_id("spring-8")[:12]] == "rejected"


def test_a_model_shows_thresholds_with_provenance_and_its_gates(reader: Reader, now_ms: int) -> None:
    page = reader.ask(lambda db: models.model_page(db, model_id("spring-8"), now_ms))
    thresholds = part(page, "thresholds", Table)
    assert texts(thresholds, "Measured on") == ["public-faces"] * 4
    assert texts(thresholds, "Non-mated") == ["401\u202f300"] * 4
    verdict = part(page, "verdicts", Table).rows[0]
    collapsed, released = (people_measured(gain=g, dims=d).monitors.effective_rank for g, d in ((-0.2, 24), (0, 64)))
    assert (verdict[1].text, verdict[3]) == ("failed", Cell(f"{collapsed:.1f}", note=f"released {released:.1f}"))
    with pytest.raises(NotFoundError):
        reader.ask(lambda db: models.model_page(db, "0" * 64, now_ms))


def test_the_budget_is_shown_as_the_ledger_has_it(reader: Reader) -> None:
    page = privacy.privacy_page(reader.ask(report))
    budgets = part(page, "budgets", Table)
    assert texts(budgets, "ε budget") == [f"{DP.epsilon:g}"]
    spent = part(page, "spent-1", Figure).table
    assert texts(budgets, "ε spent") == [f"{float(texts(spent, 'ε after')[-1]):.2f}"]
    assert texts(part(page, "ledger", Table), "Sums opened") == ["24"]
    assert texts(part(page, "tasks", Table), "Cap") == ["4"]


def test_collapse_shows_in_the_monitors(reader: Reader, now_ms: int) -> None:
    page = reader.ask(lambda db: collapse.collapse_page(db, now_ms))
    ranks = [people_measured(gain=gain, dims=dims).monitors.effective_rank for gain, dims in MEASURED]
    assert texts(part(page, "rank-1", Figure).table, "Effective rank") == [f"{rank:.3f}" for rank in ranks]
    assert texts(part(page, "limits", Table), "Least effective rank") == [f"{ranks[0] / 2:.1f}"]


def test_a_model_that_no_evaluation_set_judged_wants_an_operator_until_the_next_release(tmp_path: Path) -> None:
    new = Fleet(tmp_path)
    base, made = new.add_model("imported").model_id, new.add_model("candidate").model_id
    new.store.release(base, population=None, actor="alice")
    new.clock.move(10)
    offered = CandidateRecord(
        made, new.add_task("spring", base).task_id, 4, CandidateState.UNCHECKED, new.clock.now_ms()
    )
    new.store.privacy(lambda db: db.execute(sa.insert(CANDIDATES).values(**vars(offered))))
    reader = Reader.open(new.home.database_url(new.home.resolve().config))

    def commands() -> list[str]:
        return [alert.command for alert in reader.ask(lambda db: alerts(db, situation(new.clock.now_ms())))]

    try:
        assert commands() == [f"mien-coordinator model evaluate {short(made)} --data FACES --keep-thresholds"]
        new.clock.move(10)
        new.store.release(made, population=None, actor="alice")
        new.clock.move(10)
        new.store.roll_back(None, actor="alice")
        assert commands() == []
    finally:
        reader.close()


def test_staged_roll_outs_and_what_phones_say_of_them(tmp_path: Path) -> None:
    new = Fleet(tmp_path)
    base, made = new.add_model("imported").model_id, new.add_model("candidate").model_id
    now_ms = round(new.end.timestamp() * 1000)
    figures = {"phones": 64.0, "tar": 0.91, "reference_tar": 0.88, "mean_non_mated": 0.03, "effective_dimension": 40.0}
    row = {
        "model_id": made, "reference_model_id": base, "population": "default", "stage": 1, "attempt": 1,
        "spec_json": spec_to_json(RollOutSpec(stages=(0.01, 0.1, 1.0))), "reason": "too few phones answered",
        "state": "held", "figures_json": json.dumps(figures), "started_ms": now_ms, "started_by": "alice",
        "changed_ms": now_ms, "version": 1,
    }  # fmt: skip
    new.store.privacy(lambda db: db.execute(sa.insert(ROLL_OUTS).values(**row)))
    reader = Reader.open(new.home.database_url(new.home.resolve().config))
    try:
        table = part(reader.ask(lambda db: models.model_list(db, now_ms)), "roll-outs", Table)
        assert texts(table, "Stage") == ["2 of 3, 10\u202f% of phones"]
        assert cell(table, "1", "TAR, as phones say") == Cell("91.00\u202f%", note="before 88.00\u202f%")
        known = reader.ask(lambda db: fleets.read(db, now_ms))
        found = part(reader.ask(lambda db: overview.overview(db, situation(now_ms), known)), "alerts", Alerts).items
        assert [alert.command for alert in found if "held: too few" in alert.text] == [
            "mien-coordinator fleet continue 1"
        ]
        new.measure(made, gain=0.1)
        fleet_said = part(reader.ask(lambda db: collapse.collapse_page(db, now_ms)), "fleet", Table)
        assert texts(fleet_said, "Effective dimension") == ["40.0"]
    finally:
        reader.close()
        new.close()


def test_phones_that_asked_to_be_left_out_are_counted(tmp_path: Path) -> None:
    new = Fleet(tmp_path)
    new.add_phones(5, "default")
    new.add_phones(4, "staff", first=10)
    now_ms = round(new.end.timestamp() * 1000)
    reader = Reader.open(new.home.database_url(new.home.resolve().config))

    def shown() -> tuple[list[str], str]:
        known = reader.ask(lambda db: fleets.read(db, now_ms))
        page = reader.ask(lambda db: overview.overview(db, situation(now_ms), known))
        phones = part(page, "figures", Tiles).items[0]
        return [row[1].note for row in part(page, "phones", Table).rows], phones.note.partition("day")[2]

    try:
        assert shown() == (["", ""], "")
        for number in (0, 1, 10):
            new.store.set_participation(device_id(number), stays_out=True)
        assert shown() == (["2 left out", "1 left out"], ", 3 left out of rounds")
        new.store.set_participation(device_id(1), stays_out=False)
        assert shown() == (["1 left out", "1 left out"], ", 2 left out of rounds")
    finally:
        reader.close()
        new.close()


def test_replicas_are_listed_where_there_are_several(tmp_path: Path) -> None:
    new = Fleet(tmp_path)
    now_ms = round(new.end.timestamp() * 1000)

    def replica(name: str) -> dict[str, object]:
        return {"replica_id": name * 32, "name": f"north-{name}", "address": "10.0.0.1:7446", "software": "mien 0.1",
                "started_ms": now_ms - 60_000, "seen_ms": now_ms - 2000}  # fmt: skip

    new.store.privacy(lambda db: db.execute(sa.insert(REPLICAS).values(**replica("a"))))
    reader = Reader.open(new.home.database_url(new.home.resolve().config))
    try:
        known = reader.ask(lambda db: fleets.read(db, now_ms))
        alone = reader.ask(lambda db: overview.overview(db, situation(now_ms), known))
        assert "replicas" not in [section.anchor for section in alone.sections]
        new.store.privacy(lambda db: db.execute(sa.insert(REPLICAS).values(**replica("b"))))
        page = reader.ask(lambda db: overview.overview(db, situation(now_ms), known))
        assert sorted(texts(part(page, "replicas", Table), "Replica")) == ["north-a", "north-b"]
    finally:
        reader.close()
        new.close()


def test_the_audit_log_is_filtered_and_paged(reader: Reader, chain: ChainState) -> None:
    def entries(query: audit.Query) -> tuple[list[str], Pager]:
        page = reader.ask(lambda db: audit.audit_page(db, query, chain, ()))
        return texts(part(page, "entries", Table), "What"), part(page, "pages", Pager)

    assert chain.is_whole
    releases, _ = entries(audit.Query(action="model.rel"))
    assert set(releases) == {"model.release"}
    bobs, pager = entries(audit.Query(actor="bob"))
    assert (bobs, pager.older, pager.newer) == (["model.rollback"], "", "")
    first, pager = entries(audit.Query(action="round."))
    assert len(first) == audit.PAGE_ROWS
    before = int(pager.older.rpartition("=")[2])
    second, pager = entries(audit.Query(action="round.", before=before))
    assert pager.newer
    after = int(pager.newer.rpartition("=")[2])
    assert entries(audit.Query(action="round.", after=after))[0] == first
    assert len(second) == audit.PAGE_ROWS
    page = reader.ask(lambda db: audit.audit_page(db, audit.Query(actor="100%_nobody"), chain, ()))
    assert part(page, "entries", Empty).text.startswith("No entry fits")


def test_a_log_that_was_changed_is_told(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        for number in range(5):
            fleet.store.log("alice", "task.submit", str(number))
        with_reader = Reader.open(fleet.home.database_url(fleet.home.resolve().config))
        state = look_on(ChainState(), with_reader.ask)
        assert (state.is_whole, state.head.position) == (True, 5)
        fleet.store.log("alice", "task.submit", "5")
        assert look_on(state, with_reader.ask).head.position == 6
        _edit(fleet.store, "UPDATE audit_entries SET actor = 'mallory' WHERE position = 3")
        assert "entry 3" in look_on(ChainState(), with_reader.ask).problem
        _edit(fleet.store, "DELETE FROM audit_entries WHERE position = 6")
        cut = look_on(state, with_reader.ask)
        assert "newest entries were removed" in cut.problem
        assert look_on(cut, with_reader.ask) is cut  # a fault is not forgotten
        with_reader.close()
    finally:
        fleet.close()


def test_the_log_of_rounds_shows_whether_it_holds_and_who_cosigned_it(reader: Reader, now_ms: int) -> None:
    state = RoundLogState()
    while (found := look_on_rounds(state, reader.ask)) != state:
        state = found
    page = reader.ask(lambda db: round_log.log_page(db, state, (), now_ms))
    tree = dict(part(page, "tree", Facts).items)
    size, root = reader.ask(store_log.verify)
    assert (tree["Log"].text, tree["Log"].tone) == ("holds", "good")
    assert (tree["Entries"].text, tree["Root"].text) == (str(size), root.hex())
    assert tree["Cosigned"].note == "all of them"
    (row,) = part(page, "cosignatures", Table).rows
    assert (row[1].text, row[2].tone) == ("registrar", "good")
    entries = part(page, "entries", Table)
    assert [each.text for each in entries.rows[0]][2] == "certificate that was issued"
    whats = set(texts(entries, "What"))
    assert {"model that a task begins with", "statement of a round", "rosters of a round", "release"} <= whats
    assert "result of a round" in whats
    index = texts(entries, "What").index("rosters of a round")
    subject = entries.rows[index][3]
    assert subject.text == "spring"
    task, _, place = subject.href.removeprefix("/tasks/").partition("/rounds/")
    number, attempt = map(int, place.split("/"))
    assert reader.ask(lambda db: rounds.round_page(db, task, number, attempt, now_ms)).title.startswith("Round")


def test_a_witness_that_did_not_cosign_and_entries_that_nobody_did_are_told(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    here, away = (NoteSigner.of(WITNESS, Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (1, 2))
    entries = [certificate_entry(f"{number:064x}") for number in range(5)]
    try:
        reader = Reader.open(fleet.home.database_url(fleet.home.resolve().config))

        def shown(state: RoundLogState) -> Page:
            now_ms = fleet.clock.now_ms()
            return reader.ask(lambda db: round_log.log_page(db, state, (here.key, away.key), now_ms))

        unsigned = part(shown(RoundLogState()), "cosignatures", Table)
        assert [row[2].text for row in unsigned.rows] == ["not there"] * 2
        fleet.store.round_log(lambda db: store_log.append(db, 1, entries[:3]))
        registrar = fleet.cosign(here)
        fleet.clock.move(7200)
        fleet.store.round_log(lambda db: store_log.append(db, 1, entries[3:]))
        page = shown(RoundLogState())
        tree = dict(part(page, "tree", Facts).items)
        assert (tree["Log"].text, tree["Log"].tone) == ("being verified", "busy")
        assert (tree["Cosigned"].text, tree["Cosigned"].note) == ("3", "2 more are not yet")
        told = [[cell.text for cell in row] for row in part(page, "cosignatures", Table).rows]
        hours = "2\u00a0h\u00a0ago"
        assert told == [
            [registrar, "registrar", hours],
            [here.key.name, "further witness", hours],
            [away.key.name, "further witness", "not there"],
        ]
        whole = look_on_rounds(look_on_rounds(RoundLogState(), reader.ask), reader.ask)
        assert whole.is_whole
        _edit(fleet.store, "UPDATE log_entries SET entry = x'7b7d' WHERE position = 2")
        changed = look_on_rounds(RoundLogState(), reader.ask)
        assert "entry 2 of the log of rounds was changed" in changed.words
        assert look_on_rounds(changed, reader.ask) is changed  # a fault is not forgotten
        assert dict(part(shown(changed), "tree", Facts).items)["Log"].tone == "bad"
        reader.close()
    finally:
        fleet.close()


def _edit(store: Store, statement: str) -> None:
    store.privacy(lambda db: db.exec_driver_sql(statement))


def test_the_last_24_hours_as_the_fleet_lived_them(reader: Reader, now_ms: int) -> None:
    page = reader.ask(lambda db: overview.overview(db, situation(now_ms), fleets.read(db, now_ms)))
    ended, phones, lost = (part(page, f"{what}-by-hour", Figure) for what in ("rounds", "phones", "errors"))
    assert ended.table is not None
    assert phones.table is not None
    assert lost.table is not None
    since = hours.first_hour(now_ms) * hours.HOUR_MS
    counted = sa.select(ROUNDS.c.stage, sa.func.count(), sa.func.sum(ROUNDS.c.num_reports)).where(
        ROUNDS.c.ended_ms >= since
    )
    rows = reader.ask(lambda db: db.execute(counted.group_by(ROUNDS.c.stage)).all())
    known = {stage: (number, phones) for stage, number, phones in rows}
    assert sum(map(int, texts(ended.table, "Closed"))) == known["closed"][0] > 0
    assert sum(map(int, texts(ended.table, "Aborted"))) == known["aborted"][0] == 5
    assert sum(int(number.replace("\u202f", "")) for number in texts(phones.table, "Phones")) == known["closed"][1]
    assert {column.label for column in lost.table.columns} >= {"Hour (UTC)", "Late", "Unreachable"}
    wanted = sa.select(sa.func.count()).where(PARTICIPANTS.c.error_code == "late", PARTICIPANTS.c.changed_ms >= since)
    assert sum(map(int, texts(lost.table, "Late"))) == reader.ask(lambda db: db.scalar(wanted)) > 0


def test_commands_about_a_task_that_is_over_name_its_id(reader: Reader, now_ms: int) -> None:
    """Its name may be another one's by now, and the command line would ask which is meant."""
    rows = reader.ask(lambda db: db.execute(sa.select(TASKS)).all())
    assert {TaskState(row.state).is_over for row in rows} == {True, False}
    for row in rows:
        word = row.task_id if TaskState(row.state).is_over else row.name
        page = reader.ask(lambda db, row=row: tasks.task_page(db, row.task_id, now_ms))
        assert page.commands[0] == f"mien-coordinator task watch {word}"


def test_what_happened_last_leads_to_its_page(reader: Reader, now_ms: int) -> None:
    page = reader.ask(lambda db: overview.overview(db, situation(now_ms), fleets.read(db, now_ms)))
    table = part(page, "latest", Table)
    index = [each.label for each in table.columns].index("What")
    hrefs = [row[index].href for row in table.rows]
    assert all(href.startswith(("/tasks/", "/models/")) for href in hrefs), hrefs


def test_a_share_is_drawn_on_the_axis_of_all_shares() -> None:
    rounds = [(number, {"share_clipped": 0.02 * number, "loss_after": 1.5}) for number in range(1, 4)]
    drawn = [tasks._metric_figure([name], rounds) for name in ("share_clipped", "loss_after")]
    share, loss = (figure.charts[0] for figure in drawn if figure is not None)
    assert isinstance(share, Chart)
    assert (share.y.low, share.y.high, [words for _, words in share.y.ticks][::2]) == (
        0.0, 1.0, ["0\u202f%", "50\u202f%", "100\u202f%"],
    )  # fmt: skip
    assert loss.y.high > 1.0


@pytest.mark.parametrize(("method", "words"), [("fedface", "at rate"), ("statistics", "nothing is trained")])
def test_a_task_in_which_phones_train_nothing_shows_no_rate(method: str, words: str) -> None:
    told = dict(tasks._settings(TaskSpec("spring", method=method)).items)["On a phone"]
    assert isinstance(told, Cell)
    assert words in told.text
