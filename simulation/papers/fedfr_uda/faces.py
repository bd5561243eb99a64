"""The people of an experiment in domains: a name's part before the first `_` is its domain."""

from __future__ import annotations

import functools
import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from mien.errors import EmptyFolderError
from simulation.centralised.systems import Faces
from simulation.faces.conditions import in_condition
from simulation.faces.datasets import People, dataset_of, digest, people_of
from simulation.faces.workbench import Workbench, domain_of, open_workbench
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
        "bollywood": RealFaces("bollywood112", 30, 4),
        "lfw": RealFaces("lfw/images", 30, 4),
    }
)
"""Sets by the domain that they are; for research, non-commercial use."""


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
    return _linked(tuple((name.removesuffix("112"), (faces / name).resolve()) for name in REAL)), True


@functools.cache
def _linked(folders: tuple[tuple[str, Path], ...], fewest: int = 0) -> Path:
    """Return a folder of links `<domain>_<name>` to everybody of several folders who has enough pictures.

    It is this process's own, and gone with it: a name that others know could be theirs first, and links grow stale.
    """
    links = Path(tempfile.mkdtemp(prefix="mien-domains-"))
    Finalize(None, shutil.rmtree, (links,), {"ignore_errors": True}, exitpriority=0)  # in workers too, unlike atexit
    for domain, folder in folders:
        for person in sorted(path for path in folder.iterdir() if path.is_dir()):
            if len(list(person.iterdir())) >= fewest:
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
    return {name: files[:images] for name, files in people_of(_alone(faces, domain)).items()}


def _alone(faces: Path, domain: str) -> Path:
    return _linked(((domain, (faces / SETS[domain].folder).resolve()),), SETS[domain].fewest)


@functools.lru_cache(maxsize=4)
def open_domains(
    faces: Path | None, domains: tuple[str, ...], condition: str = "", everybodys: str = "", network: str = "sface"
) -> Workbench:
    """Return the light workbench of the people of some domains, the target's last, behind a `network` of `MODELS`.

    Each of `SETS` has a workbench of its own, whose features are computed once, whatever it stands beside. A
    `condition`, one of `simulation.faces.conditions`, is that of the target's pictures; `everybodys` is that of all.
    """
    if faces is not None and are_real(faces):
        parts = [open_workbench(_alone(faces, name), None, SETS[name].images, everybodys, network) for name in domains]
    else:
        parts = [open_workbench(faces, None, None, everybodys, network)]
    whole = _beside(parts)
    features_ND = np.concatenate([each.runtime.features(each.theta, each.crops) for each in parts])
    if condition:
        seen = np.flatnonzero(np.array([domain_of(name) == domains[-1] for name in whole.people])[whole.labels])
        features_ND[seen] = whole.runtime.features(whole.theta, in_condition(condition, whole.crops[seen]))
    return behind_features(whole, features_ND)


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
    names = sorted(name for name in people if domain_of(name) == domain)
    if len(names) < sum(counts):
        raise EmptyFolderError(
            f"domain {domain} has {len(names)} people and this experiment needs {sum(counts)}; name a larger folder "
            "with --faces, or use --quick"
        )
    drawn = [names[i] for i in np.random.default_rng([seed, 3]).permutation(len(names))]
    stops = itertools.accumulate(counts, initial=0)
    return [tuple(sorted(drawn[a:b])) for a, b in itertools.pairwise(stops)]
