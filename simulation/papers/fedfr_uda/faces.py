"""The people of an experiment in domains: a name's part before the first `_` is its domain."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.errors import EmptyFolderError
from simulation.centralised.systems import Faces
from simulation.faces.conditions import in_condition
from simulation.faces.datasets import dataset_of, digest, people_of
from simulation.faces.workbench import Workbench, open_workbench
from simulation.papers.light import behind_features

REAL: Final = ("celeba112", "bollywood112")
LFW: Final = "lfw/images"
LFW_IMAGES: Final = 10
"""Pictures of each person of LFW, the first so many; who has fewer is left out, as most people are."""


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


def data_of(faces: Path | None) -> str:
    """Return what names a study's data: everybody of `prepared`, and LFW's people where they stand beside them."""
    folder, is_real = prepared(faces)
    found = dataset_of(folder)
    if not is_real or faces is None or not (faces / LFW).is_dir():
        return found
    return _both(found, digest({name: files[:LFW_IMAGES] for name, files in people_of(_lfw(faces)).items()}))


def _lfw(faces: Path) -> Path:
    return _linked(faces, {"lfw": faces / LFW}, LFW_IMAGES)


def _both(first: str, second: str) -> str:
    return hashlib.sha256(f"{first} {second}".encode()).hexdigest()


@functools.lru_cache(maxsize=4)
def open_domains(faces: Path | None, target: str, condition: str = "") -> Workbench:
    """Return the light workbench of everybody; with the target `lfw` its people stand beside those of `prepared`.

    `condition`, one of `simulation.faces.conditions`, is that of the target's pictures.
    """
    folder, is_real = prepared(faces)
    whole = open_workbench(folder)
    features_ND = whole.runtime.features(whole.theta, whole.crops)
    of_target = np.flatnonzero(np.array([_domain(name) == target for name in whole.people])[whole.labels])
    if is_real and target == "lfw":
        assert faces is not None
        lfw = open_workbench(_lfw(faces), None, LFW_IMAGES)
        of_target = len(whole.crops) + np.arange(len(lfw.crops))
        features_ND = np.concatenate([features_ND, lfw.runtime.features(lfw.theta, lfw.crops)])
        whole = _beside(whole, lfw)
    if condition:
        seen = whole.runtime.features(whole.theta, in_condition(condition, whole.crops[of_target]))
        features_ND = features_ND.copy()
        features_ND[of_target] = seen
    return behind_features(whole, features_ND)


def _beside(first: Workbench, second: Workbench) -> Workbench:
    """Return the workbench of the people of two, the first's before the second's."""
    return replace(
        first,
        crops=np.concatenate([first.crops, second.crops]),
        labels=np.concatenate([first.labels, second.labels + len(first.people)]),
        people=first.people + second.people,
        dataset_sha256=_both(first.dataset_sha256, second.dataset_sha256),
    )


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
