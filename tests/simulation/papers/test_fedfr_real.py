"""FedFR on real faces: whose pictures play which part, by the code of the rendered study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mien.errors import EmptyFolderError
from simulation.faces.workbench import Workbench, open_workbench
from simulation.papers import fedfr, fedfr_real
from simulation.papers.fedfr.split import Split
from simulation.papers.fedfr.systems import SYSTEMS
from simulation.papers.light import open_light_workbench
from simulation.runs.experiment import Job
from simulation.synthetic import SPLITS, committed_faces

STUDY, FULL = (fedfr_real.study(quick=quick, faces=None) for quick in (True, False))
ROWS = {row.name: row for row in STUDY.rows}


def test_it_has_the_rendered_study_s_rows_of_tables_1_to_3_with_the_same_figures_of_the_paper() -> None:
    rendered = fedfr.study(quick=True, faces=None)
    for ours, theirs in zip(STUDY.tables[:3], rendered.tables[:3], strict=True):
        assert [(row.name, row.paper) for row in ours.rows] == [(row.name, row.paper) for row in theirs.rows]
        assert ours.paper_columns == theirs.paper_columns
        for row in ours.rows:
            other = next(each for each in theirs.rows if each.name == row.name)
            assert _method(row.settings) == _method(other.settings), row.name


def _method(settings: Any) -> Any:
    task = settings.get("task", {})
    return settings["system"], settings.get("personal"), task.get("method"), task.get("options")


def test_clients_hold_one_domain_and_everybody_else_is_of_the_other() -> None:
    settings = ROWS["fedfr"].settings
    split = Split.draw(None, settings, seed=1)
    people = [name for client in split.clients.values() for name in client.people]
    assert {name.partition("_")[0] for name in people} == {"african"}
    assert {name.partition("_")[0] for name in split.generic} == {"asian"}
    assert len(people) == len(set(people)) == 9
    assert len(split.alike) == 2
    assert {name.partition("_")[0] for name in split.alike} == {"african"}
    assert not set(split.alike) & set(people)
    public = {crop.tobytes() for crop in split.public.crops}
    rest = {crop.tobytes() for name in split.bench.people if name[:5] == "asian" for crop in split.bench.crops_of(name)}
    assert public < rest
    assert not public & {crop.tobytes() for crop in split.bench.labelled(split.generic)[0]}


def test_fewer_pictures_are_tested_on_the_same_ones() -> None:
    draws = {name: Split.draw(None, ROWS[name].settings, seed=1) for name in ("fedfr", "fedfr_20", "fedfr_6")}
    counts = [len(next(iter(split.clients.values())).crops) for split in draws.values()]
    assert counts == [18, 12, 6]
    for split in draws.values():
        np.testing.assert_array_equal(split.test_crops, draws["fedfr"].test_crops)
        assert [client.people for client in split.clients.values()] == [
            client.people for client in draws["fedfr"].clients.values()
        ]
        trained = {crop.tobytes() for client in split.clients.values() for crop in client.crops}
        assert not trained & {crop.tobytes() for crop in split.test_crops}


def test_a_domain_with_too_few_people_is_named() -> None:
    bench: Workbench = open_light_workbench(None, None)
    with pytest.raises(EmptyFolderError, match="20 people of domain asian and this experiment needs 21"):
        bench.split(0, 21, domain="asian")


@pytest.mark.parametrize("name", ["fedfr_blocks", "pooled_blocks"])
def test_rows_of_the_blocks_train_sface_and_no_adapter(name: str) -> None:
    settings = ROWS[name].settings
    split = Split.draw(None, settings, seed=1)
    assert split.bench.part.size == 545_280
    trained = SYSTEMS[settings["system"]](split, settings, 1)
    part, before = split.bench.part, split.bench.theta
    assert (part.gather(trained.theta) != part.gather(before)).sum() > 100_000
    np.testing.assert_array_equal(part.scatter(trained.theta, part.gather(before)), before)  # and nothing else


def test_a_toy_scale_leaves_out_what_differs_by_its_rate_alone() -> None:
    whole = {row.name: row.settings for row in FULL.rows}
    left_out = whole.keys() - ROWS.keys()
    assert left_out == {name for name in whole if name.endswith("_high")}
    for name in left_out:
        assert _with_rate(whole[name], 0.0) == _with_rate(whole[name.removesuffix("_high")], 0.0)
        assert _with_rate(whole[name], 0.01) == whole[name]
    assert {claim.text for claim in FULL.claims} - {claim.text for claim in STUDY.claims} == {
        claim.text for claim in FULL.claims if "rate 0.01: " in claim.text
    }
    titles = [table.title for table in FULL.tables]
    assert [table.title for table in STUDY.tables] == titles[:-1]  # a table of such rows alone is left out with them


def _with_rate(settings: Any, rate: float) -> Any:
    local = {**settings["local"], "lr": rate}
    task = {"task": {**settings["task"], "local": local}} if "task" in settings else {}
    return {**settings, "local": local, **task}


def test_a_row_says_how_much_distillation_weighs() -> None:
    """At weight 0 it is fine-tuning, and the more it weighs the further it is from that."""
    settings = {**ROWS["kd"].settings, "adapt_epochs": 4}
    split = Split.draw(None, settings, seed=1)

    def thetas(**changes: Any) -> Any:
        models = SYSTEMS["federated"](split, {**settings, **changes}, 1).personal
        return np.concatenate([model.theta for model in models.values()])

    tuned = thetas(personal="fine_tune")
    away = [np.abs(thetas(distillation=weight) - tuned).max() for weight in (0.0, 1.0, 10.0)]
    assert away[0] < 1e-5 < away[1] < away[2]
    assert np.abs(thetas() - tuned).max() == pytest.approx(away[1])  # 1 is the weight unless a row says otherwise


def test_people_with_too_few_pictures_for_the_tests_are_refused() -> None:
    settings = {**ROWS["fedfr"].settings, "test_images": [40, 60]}
    with pytest.raises(EmptyFolderError, match="9 of 9 people of clients have no picture left"):
        Split.draw(None, settings, seed=1)


def test_a_domain_s_people_may_have_fewer_pictures() -> None:
    whole, some = (open_workbench(None, 60, most) for most in (None, (("african", 3),)))
    kept = [len(some.crops_of(name)) for name in some.people]
    assert kept == [3 if name.startswith("african") else len(whole.crops_of(name)) for name in some.people]


def test_two_folders_make_the_two_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to shipped faces in the two folders' places: people keep their pictures, and domains get their names."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "links"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "links").mkdir()
    shipped = {name: files for each in SPLITS for name, files in committed_faces(each).items()}
    for folder, domain, count in (("bollywood112", "african", 11), ("celeba112", "asian", 18)):
        (tmp_path / folder).mkdir()
        for name in sorted(name for name in shipped if name.startswith(domain))[:count]:
            (tmp_path / folder / name).symlink_to(shipped[name][0].parent)
    study = fedfr_real.study(quick=True, faces=tmp_path)
    assert study.title.startswith("FedFR on real faces")
    assert STUDY.title.startswith("FedFR on rendered faces")
    (row,) = [row for row in study.rows if row.name == "fedfr_6"]
    assert row.settings["domains"] == ["bollywood", "celeba"]
    figures = fedfr_real.measure(Job("fedfr_6", 0, row.settings, tmp_path))
    for metric in ("generic_eer", "personal_tar_1e-2", "personal_rank1"):
        assert 0 <= figures[metric] <= 1
    json.dumps(dict(figures), allow_nan=False)
