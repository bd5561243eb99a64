"""The people of an experiment in domains: a name's part before the first `_` is its domain."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mien.errors import EmptyFolderError
from simulation.centralised.systems import Faces
from simulation.faces.workbench import Workbench, domain_of

REAL = ("celeba112", "bollywood112")


@dataclass(frozen=True)
class Domains:
    """People of one run: to train on, of the target to choose parameters on, to test on."""

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
    key = hashlib.sha256(os.fsencode(faces.resolve())).hexdigest()[:16]
    links = Path(tempfile.gettempdir()) / f"mien-domains-{os.getuid()}" / key
    links.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in REAL:
        for person in sorted(path for path in (faces / name).resolve().iterdir() if path.is_dir()):
            with contextlib.suppress(FileExistsError):
                (links / f"{name.removesuffix('112')}_{person.name}").symlink_to(person)
    return links, True


def divide(people: tuple[str, ...], settings: dict[str, Any], seed: int) -> Domains:
    """Return the disjoint groups of one run, drawn by `seed`; several source domains give equally many people.

    Raises EmptyFolderError where a domain has too few people.
    """
    sources = settings["source"]
    share, test_share = settings["source_people"] // len(sources), settings["test"] // len(sources)
    train, test = list[str](), list[str]()
    for domain in sources:
        chosen = _draw(people, domain, (share, test_share), seed)
        train += chosen[0]
        test += chosen[1]
    counts = (settings["target_people"], settings["validation"], settings["test"])
    target, validation, target_test = _draw(people, settings["target"], counts, seed)
    return Domains(tuple(train), target, validation, tuple(test), target_test)


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
