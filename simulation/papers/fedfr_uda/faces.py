"""The people of an experiment in domains: a name's part before the first `_` is its domain."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from mien.errors import EmptyFolderError
from mien.layout import Vector
from mien.records import from_mapping
from mien.specs import LocalSpec
from simulation.centralised.systems import Faces
from simulation.faces.conditions import in_condition
from simulation.faces.datasets import People, dataset_of, digest, people_of
from simulation.faces.workbench import TRAINABLE, Workbench, open_small_network, small_network
from simulation.papers.light import behind_features

REAL: Final = ("celeba112", "bollywood112")


@dataclass(frozen=True)
class RealFaces:
    """A set of real faces: its folder, the pictures of each person that count, and how many a person must have."""

    folder: str
    images: int
    fewest: int


SETS: Final = MappingProxyType(
    {
        "celeba": RealFaces("celeba112", 30, 4),
        "bollywood": RealFaces("bollywood112", 40, 4),
        "lfw": RealFaces("lfw/images", 10, 10),
    }
)
"""Sets by the domain that they are; for research, non-commercial use."""

COUNTS: Final = ("source_people", "source_test", "target_people", "validation", "validation_of", "test")
"""Settings that say how many people play which part."""


@dataclass(frozen=True)
class Domains:
    """People of one run: to train on, to choose parameters on (of the target, or of the source), to test on."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    validation: tuple[str, ...]
    source_test: tuple[str, ...]
    target_test: tuple[str, ...]


def prepared(faces: Path | None) -> tuple[Path | None, bool]:
    """Return the folder that holds people as `<domain>_<name>`, and whether they are real.

    A folder with `celeba112` and `bollywood112` is turned into one of links in the temporary directory: no face is
    copied. Any other folder is returned as it is.
    """
    if faces is None or not all((faces / name).is_dir() for name in REAL):
        return faces, False
    return _linked(faces, {name.removesuffix("112"): faces / name for name in REAL}), True


def _linked(faces: Path, domains: Mapping[str, Path], fewest: int = 0) -> Path:
    """Return a folder of links `<domain>_<name>` to everybody of several folders who has enough pictures."""
    key = hashlib.sha256("\n".join([*domains, os.fspath(faces.resolve())]).encode()).hexdigest()[:16]
    links = Path(tempfile.gettempdir()) / f"mien-domains-{os.getuid()}" / key
    links.mkdir(mode=0o700, parents=True, exist_ok=True)
    for domain, folder in domains.items():
        for person in sorted(path for path in folder.resolve().iterdir() if path.is_dir()):
            if len(list(person.iterdir())) >= fewest:
                with contextlib.suppress(FileExistsError):
                    (links / f"{domain}_{person.name}").symlink_to(person)
    return links


def are_real(faces: Path | None) -> bool:
    """Return whether a folder holds every one of `SETS`."""
    return faces is not None and all((faces / each.folder).is_dir() for each in SETS.values())


def data_of(faces: Path | None) -> str:
    """Return what names a study's data: the pictures of `SETS` where the folder holds them, or everybody's."""
    if faces is None or not are_real(faces):
        return dataset_of(faces)
    return _together([digest(_first(faces, domain)) for domain in SETS])


def _first(faces: Path, domain: str) -> People:
    images = SETS[domain].images
    return {name: files[:images] for name, files in people_of(_folder(faces, domain)).items()}


def _folder(faces: Path, domain: str) -> Path:
    return _linked(faces, {domain: faces / SETS[domain].folder}, SETS[domain].fewest)


def open_source_network(faces: Path | None, settings: Mapping[str, Any], seed: int) -> Workbench:
    """Return the light workbench of both domains behind a small network that has seen people of the source alone.

    It begins at random and is trained on the source's people in one place, as `settings["network"]` says; behind it is
    an adapter that is the identity. The target's pictures are in `settings["condition"]` where there is one.
    """
    named = ("source", "target", "condition", "network", *COUNTS)
    own = {name: settings[name] for name in named if name in settings}
    return _behind_network(faces, json.dumps(own, sort_keys=True), seed)


@functools.lru_cache(maxsize=4)
def _behind_network(faces: Path | None, settings_json: str, seed: int) -> Workbench:
    settings = json.loads(settings_json)
    source, target = tuple(settings["source"]), settings["target"]
    whole = _beside([_alone(faces, domain) for domain in ((*source, target) if are_real(faces) else ("",))])
    theta = _trained_network(
        faces, source, json.dumps(settings["network"]), divide(whole.people, settings, seed).source, seed
    )
    crops = whole.crops
    if condition := settings.get("condition", ""):
        seen = np.flatnonzero(np.array([_domain(name) == target for name in whole.people])[whole.labels])
        crops = crops.copy()
        crops[seen] = in_condition(condition, crops[seen])
    network, runtime = small_network(seed)
    model = replace(network, spec=replace(network.spec, trainable=TRAINABLE), theta=theta)
    bench = replace(whole, model=model, part=model.layout.part(TRAINABLE), runtime=runtime)
    return behind_features(bench, runtime.features(theta, crops))


@functools.lru_cache(maxsize=1)
def _trained_network(
    faces: Path | None, domains: tuple[str, ...], how: str, people: tuple[str, ...], seed: int
) -> Vector:
    """Return the network after training on these people, whatever target it is for: once a seed."""
    settings = json.loads(how)
    whole = _beside([_alone(faces, domain) for domain in (domains if are_real(faces) else ("",))])
    network, runtime = small_network(seed)
    bench = replace(whole, model=network, part=network.layout.part(network.spec.trainable), runtime=runtime)
    local = from_mapping(LocalSpec, {**settings["local"], "flip": False})
    theta = bench.trained_centrally(people, "cosface", local, seed, **settings["cosface"])
    theta.flags.writeable = False
    return theta


@functools.lru_cache(maxsize=3)
def _alone(faces: Path | None, domain: str) -> Workbench:
    """Return the faces of one set, or those of a folder that holds all domains."""
    if faces is None or not are_real(faces):
        return open_small_network(faces, 0)
    return open_small_network(_folder(faces, domain), 0, None, SETS[domain].images)


def _beside(parts: Sequence[Workbench]) -> Workbench:
    """Return the workbench of everybody in several, one after another."""
    starts = itertools.accumulate((len(each.people) for each in parts), initial=0)
    return replace(
        parts[0],
        crops=np.concatenate([each.crops for each in parts]),
        labels=np.concatenate([each.labels + start for each, start in zip(parts, starts, strict=False)]),
        people=tuple(name for each in parts for name in each.people),
        dataset_sha256=_together([each.dataset_sha256 for each in parts]),
    )


def _together(digests: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def divide(people: tuple[str, ...], settings: dict[str, Any], seed: int) -> Domains:
    """Return the disjoint groups of one run, drawn by `seed`; several source domains give equally many people.

    With `validation_of` "source" parameters are chosen on people of the source, and no label of the target is needed.
    Raises EmptyFolderError where a domain has too few people.
    """
    sources = settings["source"]
    is_source = settings.get("validation_of", "target") == "source"
    sizes = (settings["source_people"], settings.get("source_test", settings["test"]), settings["validation"])
    drawn = [
        _draw(people, domain, tuple(size // len(sources) for size in sizes[: 2 + is_source]), seed)
        for domain in sources
    ]
    train, test, *of_source = (tuple(itertools.chain(*group)) for group in zip(*drawn, strict=True))
    counts = (settings["target_people"], 0 if is_source else settings["validation"], settings["test"])
    target, of_target, target_test = _draw(people, settings["target"], counts, seed)
    return Domains(train, target, of_source[0] if is_source else of_target, test, target_test)


def faces_of(bench: Workbench, people: tuple[str, ...], max_images: int) -> Faces:
    """Return these people's crops, at most so many of each, with labels from 0."""
    return Faces(*bench.labelled(people, max_images))


def _draw(people: tuple[str, ...], domain: str, counts: tuple[int, ...], seed: int) -> list[tuple[str, ...]]:
    names = sorted(name for name in people if _domain(name) == domain)
    if len(names) < sum(counts):
        raise EmptyFolderError(
            f"domain {domain} has {len(names)} people and this experiment needs {sum(counts)}; name a larger folder "
            "with --faces, or use --quick"
        )
    drawn = [names[i] for i in np.random.default_rng([seed, 3]).permutation(len(names))]
    stops = itertools.accumulate(counts, initial=0)
    return [tuple(sorted(drawn[a:b])) for a, b in itertools.pairwise(stops)]


def _domain(name: str) -> str:
    return name.partition("_")[0]
