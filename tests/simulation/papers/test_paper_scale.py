"""Experiments at the papers' own scale start: as they are in a dry run, and in small with a first round."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import simulation.papers
from mien.errors import ConfigError, EmptyFolderError
from mien.records import to_mapping
from simulation.faces.models import write_model
from simulation.faces.sources import FacesSource
from simulation.pages.run_page import run_page
from simulation.runs.records import RunFolder
from simulation.runs.run import dry_run, model_of, run_experiment
from simulation.runs.spec import ModelSource, RunSpec, load, parse
from tests.simulation.faces.test_recordio import image_record, range_record, write

FILES = sorted((Path(simulation.papers.__file__).parent / "paper_scale").glob("*.toml"))
SHIPPED = Path(simulation.papers.__file__).parents[1] / "synthetic" / "faces" / "phones"
by_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


EXPECTED: dict[str, dict[str, int]] = {
    "fedface-casia": {"clients": 1000, "identities": 1000, "public_identities": 9000},
    "fedfr-ms1m": {
        "clients": 40,
        "identities": 4000,
        "public_identities": 6000,
        "images": 240_000,
        "probe_images": 160_000,
        "identities_max": 100,
    },
    "pfm-3-parties": {"clients": 3, "identities": 188_452},
    "pfm-12-parties": {"clients": 12, "identities": 188_452},
    "fedgc-casia-balanced": {"clients": 36, "identities_min": 280, "identities_max": 281},
    "fedgc-casia-unbalanced": {"clients": 36, "identities": 10_091},
    "fedfr-uda-small": {"clients": 5, "identities": 13_900},
    "fedfr-uda-large": {"clients": 2, "identities": 93_972},
}


def test_every_paper_is_at_its_scale() -> None:
    assert len(FILES) == len(EXPECTED)


@by_file
def test_a_dry_run_finds_nothing_that_a_start_would_refuse(path: Path, tmp_path: Path) -> None:
    spec = load(path)
    found = dry_run(spec, tmp_path)
    expected = EXPECTED[found["experiment"]]
    assert {name: found["partition"][name] for name in expected} == expected
    if "unbalanced" in path.stem:
        assert found["partition"]["identities_max"] > 4 * found["partition"]["identities_min"]
    assert spec.task.privacy.max_weight == 65535, "a paper weighs clients by their images"
    absent = {source.path for source in spec.faces} | ({spec.model.path} - {""})
    assert set(found["generated"]) == absent


@pytest.mark.parametrize(
    ("before", "after", "error", "says"),
    [
        ("", 'sums = "ring"', ConfigError, "secure_aggregation is off"),
        ("epochs = 2", 'epochs = 2\nbatch_norm = "train"', ConfigError, "engine fused cannot run"),
        ("test = 4", "test = 0", EmptyFolderError, "test people"),
        ('trainable = ["adapter.*"]', 'trainable = ["adaptor.*"]', ConfigError, "'adaptor.*' matches no tensor"),
        ("rounds = 1", "rounds = 1\nasynchronous = {}", ConfigError, "no asynchronous mode"),
    ],
    ids=["ring", "engine", "test", "tensor", "asynchronous"],
)
def test_a_dry_run_refuses_what_a_start_refuses(
    tmp_path: Path, before: str, after: str, error: type[Exception], says: str
) -> None:
    """Each was found only once the faces had been read."""
    text = EXPERIMENT.replace(before, after, 1) if before else f"{after}\n{EXPERIMENT}"
    text = f'engine = "fused"\n{text}' if "fused" in says else text
    for start in (dry_run, lambda spec, root: run_experiment(spec, root / "out", root, tell=lambda _: None)):
        with pytest.raises(error, match=says):
            start(parse(text), tmp_path)


PEOPLE, IMAGES = 14, 3
SMALL = ModelSource(source="new", backbone="mobilefacenet", dim=64)
EXPERIMENT = """
name = "small"
[[faces]]
kind = "shipped"
[partition]
clients = 3
public = 4
test = 4
[task]
method = "fedface"
rounds = 1
trainable = ["adapter.*"]
[task.cohort]
size = 3
min_reports = 3
[task.local]
epochs = 2
[task.privacy]
min_cohort = 3
secure_aggregation = "off"
reveals = ["class_embeddings"]
"""


@by_file
def test_in_small_each_starts_and_takes_its_first_round(path: Path, tmp_path: Path) -> None:
    """The same methods, schemes and forms of data, with few people, images and steps, and a small network."""
    spec = in_small(load(path))
    make_data(spec, tmp_path)
    found = run_experiment(spec, tmp_path / "out", tmp_path, tell=lambda _text: None)
    (record,) = RunFolder(tmp_path / "out").records()
    has_moved = found["before"]["model_id"] != found["after"]["model_id"]
    assert has_moved == ("did not move" not in record.get("warning", "")), "a run that trained nothing said nothing"
    assert found.get("warnings", []) == ([record["warning"]] if "warning" in record else [])
    assert ("Trained nothing" in run_page(to_mapping(spec), [record], found)) == ("warning" in record)


def in_small(spec: RunSpec) -> RunSpec:
    """Return an experiment with few people and images a client, one step a round, and one round."""
    task, split = spec.task, spec.partition
    domains = {domain: min(number, 2) for domain, number in split.domain_clients.items()}
    clients = sum(domains.values()) or 3
    task = replace(
        task,
        rounds=1,
        cohort=replace(task.cohort, size=clients, min_reports=clients),
        local=replace(task.local, steps=1, batch_size=4),
        privacy=replace(task.privacy, min_cohort=min(3, clients)),
        options={**task.options, **({"public_classes": 3} if "public_classes" in task.options else {})},
    )
    split = replace(
        split,
        domain_clients=domains,
        clients=clients,
        identities=6 if split.identities else 0,
        min_images=3 if split.train_images else 1,
        **{"train_images": 2, "probe_images": 1} if split.train_images else {},
        public=3 if split.public else 0,
        test=4,
    )
    model = ModelSource(source="folder", path=spec.model.path) if spec.model.path else SMALL
    return replace(
        spec, model=model, task=task, partition=split, evaluation=replace(spec.evaluation, replicates=100, max_people=4)
    )


def make_data(spec: RunSpec, root: Path) -> None:
    """Write an experiment's data sets, lists and model, where it says that they are."""
    pictures = itertools.cycle(sorted(SHIPPED.glob("*/*.jpg")))
    for source in spec.faces:
        if source.exclude:
            (root / source.exclude).parent.mkdir(exist_ok=True)
            (root / source.exclude).write_text("nobody\n")
        _make_archive(root / source.path, pictures) if source.kind == "rec" else _make_folder(root, source, pictures)
    if spec.model.path:
        write_model(
            model_of(ModelSource(source="new", backbone="mobilefacenet_folded", dim=64), root), root / spec.model.path
        )


def _make_folder(root: Path, source: FacesSource, pictures: Iterator[Path]) -> None:
    for person, number in itertools.product(range(PEOPLE), range(IMAGES)):
        place = root / source.path / f"{source.domain}_{person}"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(next(pictures), place / f"{number}.jpg")


def _make_archive(place: Path, pictures: Iterator[Path]) -> None:
    place.parent.mkdir(parents=True)
    images = {
        1 + person * IMAGES + number: image_record(float(person), next(pictures).read_bytes())
        for person, number in itertools.product(range(PEOPLE), range(IMAGES))
    }
    first = len(images) + 1
    people = {first + k: range_record(1.0 + k * IMAGES, 1.0 + (k + 1) * IMAGES) for k in range(PEOPLE)}
    write(place.parent, {0: range_record(float(first), float(first + PEOPLE)), **images, **people})
