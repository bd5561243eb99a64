"""Systems that train in one place, from an experiment's file: the studies' own training, recorded as any run."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.errors import ConfigError, FileAccessError, MienError
from mien.records import to_mapping
from simulation.centralised.systems import Faces, Head, Trainer
from simulation.engines.base import device_seed
from simulation.faces import sources
from simulation.faces.datasets import people_of
from simulation.faces.models import read_model
from simulation.faces.partitions import Holding
from simulation.faces.sources import Reader, counts_of, images_of_all
from simulation.pages.run_page import run_page, write_run
from simulation.runs import central
from simulation.runs.central import EVERYBODY, held
from simulation.runs.collected import collect
from simulation.runs.grid import load_sweep
from simulation.runs.records import Header, RunFolder
from simulation.runs.run import dry_run, model_of, run_experiment
from simulation.runs.spec import RunSpec, make_plan, parse
from tests.helpers import ROOT
from tests.simulation.runs.test_experiment import SMALL, quiet

CENTRAL = """
[central]
loss = "arcface"
scale = 16.0
margin = 0.1
"""
POOLED = (
    SMALL.replace('name = "small"', 'name = "small"\nsystem = "pooled"')
    .replace("clients = 3", "clients = 4")
    .replace("test = 8", "test = 5\ntrain_images = 3\nmin_images = 3")
    .replace("every = 2", "every = 0")
    + CENTRAL
)
PRETRAIN = "pretrain = { lr = 0.02, epochs = 2 }\n"


def reader_of(spec: RunSpec) -> Reader:
    return Reader(images_of_all(spec.faces, Path()), model_of(spec.model, Path()).spec.input)


def test_a_pooled_round_is_the_studies_training_of_everybody(tmp_path: Path) -> None:
    spec = parse(POOLED.replace("rounds = 3", "rounds = 1"))
    found = run_experiment(spec, tmp_path / "out", tmp_path, tell=quiet)
    model = model_of(spec.model, tmp_path)
    plan = make_plan(spec, lambda source: counts_of(source, tmp_path))
    crops, labels = reader_of(spec).read(held(plan))
    trainer = Trainer(
        TorchRuntime(model.spec, model.layout),
        model.layout.part(spec.task.trainable),
        Head("arcface", 16.0, 0.1),
        spec.task.local,
        device_seed(spec.task, EVERYBODY, 1),
    )
    np.testing.assert_array_equal(
        read_model(tmp_path / "out" / "model").theta, trainer.supervised(model.theta, Faces(crops, labels))
    )
    (record,) = RunFolder(tmp_path / "out").records()
    assert (record["clients"], record["weight"], record["engine"]) == (1, len(crops), "pooled")
    assert record["loss_after"] < record["loss_before"]
    assert (found["method"], found["rounds"], found["partition"]["clients"]) == ("pooled", 1, 4)
    assert "pooled" in write_run(tmp_path / "out").read_text()
    assert "after.eer" in collect(tmp_path / "out")[0].figures


def stopped_after(number: int) -> Any:
    def after_round(record: Mapping[str, Any], _total: int) -> None:
        if record["round"] == number:
            raise KeyboardInterrupt

    return after_round


@pytest.mark.parametrize("system", ["pooled", "federated"])
def test_a_run_that_was_stopped_goes_on_to_the_same_model(system: str, tmp_path: Path) -> None:
    """With what it was pre-trained to, which is not made twice."""
    text = POOLED.replace('"pooled"', f'"{system}"').replace("test = 5", "test = 5\npublic = 3") + PRETRAIN
    spec = parse(text.replace("size = 3", "size = 4"))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec, tmp_path / "stopped", tmp_path, tell=quiet, after_round=stopped_after(1))
    made = (tmp_path / "stopped" / "pretrained" / "model.json").stat().st_mtime_ns
    resumed = run_experiment(spec, tmp_path / "stopped", tmp_path, resume=True, tell=quiet)
    assert (tmp_path / "stopped" / "pretrained" / "model.json").stat().st_mtime_ns == made
    whole = run_experiment(spec, tmp_path / "whole", tmp_path, tell=quiet)
    assert resumed["after"] == whole["after"]
    assert resumed["pretrained"] == whole["pretrained"]
    assert len({each["model_id"] for each in (whole["before"], whole["pretrained"], whole["after"])}) == 3
    assert "pretrained.eer" in collect(tmp_path / "whole")[0].figures
    assert "after pre-training" in write_run(tmp_path / "whole").read_text()


def test_what_is_only_pretrained_has_no_rounds(tmp_path: Path) -> None:
    spec = parse(POOLED.replace('"pooled"', '"pretrained"').replace("test = 5", "test = 5\npublic = 3") + PRETRAIN)
    found = run_experiment(spec, tmp_path / "out", tmp_path, tell=quiet)
    assert RunFolder(tmp_path / "out").records() == []
    assert found["rounds"] == 0
    assert "pretrained, 0 rounds." in write_run(tmp_path / "out").read_text()
    assert "The run has not ended. Go on" in run_page(to_mapping(spec), [], None)
    assert found["after"] == found["pretrained"]
    assert found["after"]["model_id"] != found["before"]["model_id"]
    assert run_experiment(spec, tmp_path / "out", tmp_path, resume=True, tell=quiet) == found
    still = parse(POOLED.replace('"pooled"', '"pretrained"').replace(CENTRAL, ""))
    found = run_experiment(still, tmp_path / "still", tmp_path, tell=quiet)
    assert found["after"] == found["before"]


def domains(root: Path, system: str, *, more: str = "") -> RunSpec:
    """Return an experiment with labelled people and unlabelled ones, of shipped pictures."""
    people = people_of(None)
    for domain in ("asian", "african"):
        for name in [name for name in people if name.startswith(domain)][:7]:
            place = root / domain / name
            place.mkdir(parents=True, exist_ok=True)
            for picture in people[name][:4]:
                (place / picture.name).symlink_to(picture)
    sources = "".join(
        f'[[faces]]\npath = "{domain}"\ndomain = "{domain}"\nsynthetic = true\nlabelled = {known}\n'
        for domain, known in (("asian", "true"), ("african", "false"))
    )
    text = POOLED.replace('"pooled"', f'"{system}"').replace('[[faces]]\nkind = "shipped"\n', sources)
    text = text.replace(
        'scheme = "one_identity"\nclients = 4', 'scheme = "by_domain"\ndomain_clients = { asian = 1, african = 2 }'
    )
    return parse(text.replace("rounds = 3", "rounds = 2") + more)


@pytest.mark.parametrize("system", ["dan", "dann", "pooled"])
def test_domains_are_drawn_together_or_merged(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    train = TorchRuntime.train

    def watched(self: TorchRuntime, job: Any, *rest: Any) -> Any:
        seen.append((len(job.crops), job.objective.private["class_embeddings"].shape[0]))
        return train(self, job, *rest)

    spec = domains(tmp_path, system, more='pretrain = { lr = 0.02 }\non = "labelled"\n')
    monkeypatch.setattr(TorchRuntime, "train", watched)
    found = run_experiment(spec, tmp_path / "out", tmp_path, tell=quiet)
    plan = make_plan(spec, lambda source: counts_of(source, tmp_path))
    source, everybody = held(plan, labelled=True), held(plan)
    images = [sum(len(each.images) for each in people) for people in (source, everybody)]
    num_classes = len(everybody) if system == "pooled" else len(source)  # merge has the targets' true labels
    assert seen == [(images[0], len(source)), *[(images[1], num_classes)] * 2]
    assert 0 < len(source) < len(everybody)
    assert found["method"] == system
    assert [record["weight"] for record in RunFolder(tmp_path / "out").records()] == [images[1]] * 2


def test_federated_is_what_a_run_is_that_names_no_system() -> None:
    named = parse(SMALL.replace('name = "small"', 'name = "small"\nsystem = "federated"'))
    assert to_mapping(named) == to_mapping(parse(SMALL))


def test_whom_two_clients_hold_is_one_person() -> None:
    shared = SMALL.replace('scheme = "one_identity"', 'scheme = "equal"\nidentities = 6\nshared = 1.0')
    plan = make_plan(parse(shared), lambda source: counts_of(source, Path()))
    people = held(plan)
    assert len(people) == 6
    assert all(isinstance(each, Holding) and each.images == tuple(range(10)) for each in people)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('name = "small"', 'name = "small"\nsums = "ring"'), "sums is 'ring', which is about clients"),
        (('name = "small"', 'name = "small"\nengine = "fused"'), "engine is 'fused'"),
        (('"pooled"', '"dan"'), "set faces.labelled to false for some"),
        (('"pooled"', '"polled"'), "system is 'polled'"),
        (('"pooled"', '"federated"'), "[central] is for a system in one place"),
        (("scale = 16.0", "scale = 0.0"), "central.scale"),
        (("margin = 0.1", "margin = 2.0"), "central.margin is 2.0"),
        (("margin = 0.1", "margin = 0.1\n" + PRETRAIN), "central.pretrain is on public people"),
        (("margin = 0.1", "margin = 0.1\nreversal = -1.0"), "central.reversal"),
    ],
    ids=lambda each: each[1][:20].strip() if isinstance(each, tuple) else "",
)
def test_mistakes_are_named(change: tuple[str, str], says: str) -> None:
    before, after = change
    at = POOLED.rindex(before) if before == "margin = 0.1" else POOLED.index(before)
    with pytest.raises(ConfigError) as refused:
        parse(POOLED[:at] + after + POOLED[at + len(before) :])
    assert says in refused.value.message


def test_a_dry_run_refuses_what_a_start_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dry_run(parse(POOLED), tmp_path)["method"] == "pooled"
    one = parse(POOLED.replace("clients = 4", "clients = 1"))
    monkeypatch.setattr(sources, "KEEP_BYTES", 10**5)
    for spec, says in ((one, "tells people apart, and has 1"), (parse(POOLED), "most; lower partition.identities")):
        for start in (dry_run, lambda each, root: run_experiment(each, root / "out", root, tell=quiet)):
            with pytest.raises(MienError, match=says):
                start(spec, tmp_path)
    assert not (tmp_path / "out" / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("public", "most", "says"),
    [(3, 31, None), (10, 31, "central.pretrain keeps all of its crops in memory: 100 images")],
    ids=["few public people", "many public people"],
)
def test_memory_is_that_of_the_people_who_are_read(
    public: int, most: int, says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients hold 40 pictures of 112 x 112 RGB, and a pre-training on public people reads none of these at once."""
    text = SMALL.replace("clients = 3", "clients = 4").replace("test = 8", f"test = 5\npublic = {public}") + CENTRAL
    plan = make_plan(parse(text + PRETRAIN), lambda source: counts_of(source, tmp_path))
    assert sum(len(each.images) for each in held(plan)) == 40
    monkeypatch.setattr(sources, "KEEP_BYTES", most * 112 * 112 * 3)
    if says is None:
        central.check(plan, 112 * 112 * 3)
    else:
        with pytest.raises(ConfigError, match=says):
            central.check(plan, 112 * 112 * 3)


def test_a_model_of_an_earlier_run_that_cannot_be_removed_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the new run would begin with it, as one does that goes on."""

    def refused(path: str, **_place: Any) -> None:
        raise PermissionError(errno.EACCES, "may not", path)

    spec, run = parse(POOLED), RunFolder(tmp_path / "out")
    run.pretrained.mkdir(parents=True)
    (run.pretrained / "model.json").write_text("{}")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", refused)
        with pytest.raises(FileAccessError, match=r"may not write .*pretrained"):
            run.start(spec, Header.now(spec.name, to_mapping(spec), "0" * 64, 0))
    assert not run.experiment.exists()


@pytest.mark.parametrize(("name", "rows"), [("systems", 3), ("personal", 5)])
def test_every_row_of_the_guides_examples_starts(name: str, rows: int, tmp_path: Path) -> None:
    swept = load_sweep(ROOT / "docs" / "examples" / f"{name}.toml", (), None)
    assert [dry_run(row.spec, tmp_path)["experiment"] for row in swept.rows] == [name] * rows
