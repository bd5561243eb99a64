"""A model's card: everything of the record, nothing else, and the same to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.commands.cli import app
from coordinator.commands.models.cards import card_of
from coordinator.operator.card import ModelCard, card_report, to_plain
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.evaluation.fairness import differential
from mien.models.unmeasured import ALWAYS_UNMEASURED, SUBJECTS
from mien.shell.pages import markdown, render
from simulation.faces.folder_protocol import _group_plain, _rate_plain
from tests.coordinator.dashboard.made_up import DP, Fleet

END = datetime(2026, 3, 1, 12, tzinfo=UTC)


def groups() -> dict[str, Any]:
    """Return what a record says of two ages of made-up people, the children alike and one old person."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(71), 2)
    centres = rng.standard_normal((71, 64))
    centres[:30] += 1.2 * rng.standard_normal(64)
    embeddings = (centres[labels] + 0.3 * rng.standard_normal((labels.size, 64))).astype(np.float32)
    found = differential(
        embeddings,
        labels,
        {"age": {"0-12": range(30), "20-39": range(30, 70), "60+": [70]}},
        threshold=0.6,
        target_fmr=1e-3,
        num_failed=np.zeros(71, np.int64),
    )
    between = [
        {"attribute": each.attribute, "first": each.first, "second": each.second, "fmr": _rate_plain(each.fmr)}
        for each in found.between
    ]
    return {
        "target_fmr": 1e-3,
        "threshold": 0.6,
        "by_worst_group": False,
        "worst_group": None,
        "groups_sha256": "",
        "not_stated": {"age": 4},
        "rates": [_group_plain(each) for each in found.groups],
        "between": between,
        "warnings": found.warnings(),
    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """An imported model that was measured by group, and one that a private task made of it in three rounds."""
    made = Fleet(tmp_path_factory.mktemp("card"), end=END)
    base = made.add_model("imported").model_id
    made.measure(base, gain=0.0, dataset="old <faces> | *all*")
    record = {"protocol": "folder-all-pairs", "protocol_version": "1", "dataset": "ages", "groups": groups()}
    made.keep(base, {**record, "dataset_sha256": "d" * 64, "identities": 71, "images": 142, "fte": 0})
    task = made.add_task("private", base, population="staff", dp=DP)
    made.add_model("trained", task=task, round_=3)
    made.spend(task, 4)
    yield made
    made.close()


@pytest.fixture(scope="module")
def imported(fleet: Fleet) -> ModelCard:
    return card_of(fleet.store, fleet.store.models()[0].model_id)


@pytest.fixture(scope="module")
def trained(fleet: Fleet) -> ModelCard:
    return card_of(fleet.store, fleet.store.models()[1].model_id)


def test_groups_stand_in_it_with_counts_intervals_and_verdicts(imported: ModelCard) -> None:
    text = markdown(card_report(imported))
    (children,) = [line for line in text.splitlines() if line.startswith("| age 0-12 (FMR")]
    rate = imported.records[-1]["groups"]["rates"][0]
    assert rate["verdict"] == "exceeds"
    assert 0 < rate["fmr"]["errors"] < rate["fmr"]["of"] == 1740
    assert f"; {rate['fmr']['errors']} of 1740) |" in children.replace("\u202f", "")
    assert "✕ too high" in children
    (old,) = [line for line in text.splitlines() if line.startswith("| age 60+ (")]
    assert "one person has no strangers in it; add people" in old
    assert "△ too small to tell" in old
    assert "4 people state no age" in text
    assert "| age 0-12 | 20-39 |" in text
    assert "- **✕** Group age 0-12: FMR" in text


def test_what_nobody_measured_is_said(imported: ModelCard, trained: ModelCard) -> None:
    told = to_plain(imported)["never_measured"]
    measured = {"children up to 12 years"}  # too high is measured; a single old person is not
    assert told == [each for each in SUBJECTS if each not in measured] + list(ALWAYS_UNMEASURED)
    assert to_plain(trained)["never_measured"] == [*SUBJECTS, *ALWAYS_UNMEASURED]
    text = markdown(card_report(trained))
    assert "Not for children up to 12 years: nobody measured them." in text
    assert "No group of people was measured by itself" in text
    assert "Nothing was measured of it yet." in text


def test_training_is_told_from_the_record_up_to_the_models_round(trained: ModelCard) -> None:
    (told,) = trained.trainings
    assert (told.task.name, told.rounds, told.num_sums, told.phones) == ("private", 3, 3, (20, 20))
    assert told.epsilon is not None
    text = markdown(card_report(trained))
    assert "**Method:** fedface" in text
    assert f"central gaussian, noise 12; this task spent epsilon {told.epsilon:.4g}, its population may spend 8" in text
    assert "**Secure aggregation:** malicious server" in text
    (plain,) = to_plain(trained)["training"]
    assert plain["discloses"]
    assert json.loads(json.dumps(plain))["task"]["privacy"]["dp"]["delta"] == 1e-6


def test_the_same_record_gives_the_same_card(fleet: Fleet, imported: ModelCard) -> None:
    again = card_of(fleet.store, imported.model.model_id)
    assert markdown(card_report(again)) == markdown(card_report(imported))
    page = render(card_report(again))
    assert page == render(card_report(imported))
    assert "old &lt;faces&gt; | *all*" in page
    assert "<script" not in page
    assert r"old \<faces\> \| \*all\*" in markdown(card_report(imported))


class TestCommand:
    def run(self, fleet: Fleet, *arguments: object) -> Any:
        return CliRunner().invoke(app, ["model", "card", *map(str, arguments), "--home", str(fleet.home.folder)])

    def test_it_is_printed_or_written_in_either_form(self, fleet: Fleet, imported: ModelCard, tmp_path: Path) -> None:
        name = imported.model.model_id[:12]
        printed = self.run(fleet, name)
        assert printed.exit_code == 0, printed.output
        assert printed.stdout == markdown(card_report(imported))
        for file, expected in (("c.md", printed.stdout), ("c.html", render(card_report(imported)))):
            assert self.run(fleet, name, "--out", tmp_path / file).exit_code == 0
            assert (tmp_path / file).read_text(encoding="utf-8") == expected
        told = json.loads(self.run(fleet, name, "--json").stdout)
        assert (told["model_id"], told["out"]) == (imported.model.model_id, None)
        assert told["measured"][-1]["groups"]["rates"][0]["group"] == "0-12"

    def test_mistakes_are_told_and_nothing_is_overwritten(
        self, fleet: Fleet, imported: ModelCard, tmp_path: Path
    ) -> None:
        name = imported.model.model_id[:12]
        (tmp_path / "c.md").write_text("mine", encoding="utf-8")
        for arguments, error in (
            ((name, "--out", tmp_path / "c.md"), AlreadyExistsError),
            ((name, "--out", tmp_path / "c.pdf"), ConfigError),
            (("ffff" * 9,), NotFoundError),
            (("released",), NotFoundError),
        ):
            assert isinstance(self.run(fleet, *arguments).exception, error)
        assert (tmp_path / "c.md").read_text(encoding="utf-8") == "mine"
