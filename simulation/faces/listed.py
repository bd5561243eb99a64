"""Images that a test protocol's lists name: the lists' texts, and the images in a folder, embedded and hashed.

LFW and lists like it name samples of people, in LFW's own folder layout.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mien.backbones import Backbone, build_backbone, load_theta
from mien.errors import CorruptDataError, EmptyFolderError, NotFoundError
from mien.evaluation import dataset_digest
from mien.evaluation.protocols import lfw
from simulation.faces.embedding import Acquired, embed_images
from simulation.faces.models import Model


@dataclass(frozen=True)
class Lists:
    """A folder of a protocol's lists; `read_so_far` holds the name and SHA-256 of each list that was read."""

    folder: Path
    read_so_far: list[tuple[str, str]] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Return whether the folder holds this list."""
        return (self.folder / name).is_file()

    def read(self, name: str) -> str:
        """Return a list's text; raises NotFoundError if it cannot be read, CorruptDataError if it is no text."""
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise NotFoundError(f"the list {name} cannot be read; complete {self.folder}") from error
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"{name} is no text in UTF-8; fetch the list again") from error
        self.read_so_far.append((name, hashlib.sha256(text.encode()).hexdigest()))
        return text


@dataclass(frozen=True, eq=False)
class Listed:
    """Names of images with what became of each, in the order given, and one hash of the images and their lists."""

    names: tuple[str, ...] = field(repr=False)
    acquired: Acquired
    dataset_sha256: str

    @property
    def rows(self) -> dict[str, int]:
        """The row in the embeddings of each image that has one."""
        return {self.names[i]: row for row, i in enumerate(self.acquired.rows)}

    def of(self, names: Iterable[str]) -> NDArray[np.float64]:
        """Return the embeddings of these images, all of which have one."""
        rows = self.rows
        chosen: NDArray[np.float64] = self.acquired.embeddings[[rows[name] for name in names]]
        return chosen


def backbone_of(model: Model) -> Backbone:
    """Return a model's backbone with its parameters; raises LayoutMismatchError where they are another one's."""
    backbone = build_backbone(model.spec.backbone, model.spec.input)
    load_theta(backbone, model.layout, model.theta)
    return backbone


def embed_listed(
    backbone: Backbone,
    folder: Path,
    names: Sequence[str],
    lists: Sequence[tuple[str, str]],
    tell: Callable[[str], None],
    *,
    what: str,
    aligned: bool = False,
    landmarks: NDArray[np.float64] | None = None,
) -> Listed:
    """Return the embeddings of the images `names`, each once, in a folder; `aligned`, `landmarks` as `embed_images`.

    `lists` are names and hashes of the lists that name them. Raises NotFoundError if an image is missing and
    EmptyFolderError if none gives a face; one without a face is a failure to enrol.
    """
    paths = [folder / name for name in names]
    missing = [name for name, path in zip(names, paths, strict=True) if not path.is_file()]
    if missing:
        place = f"{folder.parent.name}/{folder.name}"
        raise NotFoundError(f"{len(missing)} images of {what} are missing, first {missing[0]}; complete {place}")
    acquired = embed_images(backbone, paths, tell, aligned=aligned, landmarks=landmarks)
    if not acquired.rows:
        reasons = ", ".join(f"{code} ({count})" for code, count in Counter(acquired.failed.values()).most_common())
        raise EmptyFolderError(f"no image of {what} gives a face: {reasons}; use other images")
    files = [*lists, *zip(names, acquired.digests, strict=True)]
    return Listed(tuple(names), acquired, dataset_digest(files))


@dataclass(frozen=True, eq=False)
class EmbeddedSamples:
    """Samples with their embeddings (N, D), f(x) + f(mirrored x), and those of which none could be made."""

    samples: list[lfw.LfwSample]
    embeddings: NDArray[np.float64] = field(repr=False)
    failed: list[lfw.LfwSample]
    num_multiple: int
    dataset_sha256: str


def read_pairs(folder: Path) -> lfw.PairList:
    """Return the pairs of `folder`/protocol/pairs.txt (View 2); raises NotFoundError if it cannot be read."""
    path = folder / "protocol" / "pairs.txt"
    try:
        return lfw.parse_pairs(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError("the LFW pair list pairs.txt cannot be read; complete lfw/protocol") from error


def embed_named(
    backbone: Backbone,
    images: Path,
    samples: Sequence[lfw.LfwSample],
    lists: Sequence[tuple[str, str]],
    tell: Callable[[str], None],
    *,
    what: str,
    aligned: bool = False,
) -> EmbeddedSamples:
    """Return the embeddings of samples in a folder of LFW's layout; arguments and errors as in `embed_listed`."""
    names = [sample.path for sample in samples]
    listed = embed_listed(backbone, images, names, lists, tell, what=what, aligned=aligned)
    acquired = listed.acquired
    return EmbeddedSamples(
        [samples[i] for i in acquired.rows],
        acquired.embeddings,
        [samples[i] for i in acquired.failed],
        acquired.num_multiple,
        listed.dataset_sha256,
    )
