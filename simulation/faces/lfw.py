"""LFW on disk, in its own folder layout, as the samples that the LFW protocol scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mien.backbones import Backbone
from mien.errors import NotFoundError
from mien.evaluation.protocols import lfw
from simulation.faces.listed import embed_listed


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

    Errors as in `embed_listed`; a sample without a face is a failure to enrol, listed in `failed`.
    """
    lists = [("pairs.txt", pairs.sha256)]
    return embed_named(backbone, folder / "images", pairs.samples, lists, tell, what="LFW")


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
