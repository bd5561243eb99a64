"""LFW on disk, in its own folder layout, as the samples that the LFW protocol scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mien.backbones import Backbone
from mien.errors import NotFoundError
from mien.evaluation import dataset_digest
from mien.evaluation.protocols import lfw
from simulation.faces.embedding import embed_images


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


def embed_samples(
    backbone: Backbone, folder: Path, pairs: lfw.PairList, tell: Callable[[str], None]
) -> EmbeddedSamples:
    """Return the embeddings of every sample that the pairs need, from the raw images in `folder`/images.

    Raises NotFoundError if an image is missing; one without a face is a failure to enrol, listed in `failed`.
    """
    samples = pairs.samples
    paths = [folder / "images" / sample.path for sample in samples]
    missing = [sample.path for sample, path in zip(samples, paths, strict=True) if not path.is_file()]
    if missing:
        raise NotFoundError(f"{len(missing)} images of LFW are missing, first {missing[0]}; complete lfw/images")
    acquired = embed_images(backbone, paths, tell)
    files = [("pairs.txt", pairs.sha256), *zip((s.path for s in samples), acquired.digests, strict=True)]
    return EmbeddedSamples(
        [samples[i] for i in acquired.rows],
        acquired.embeddings,
        [samples[i] for i in acquired.failed],
        acquired.num_multiple,
        dataset_digest(files),
    )
