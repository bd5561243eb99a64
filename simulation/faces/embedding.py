"""Images to embeddings for evaluation: Mien's own detector and alignment, a backbone in torch, mirror image summed."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline, decode_image
from mien.backbones import Backbone
from mien.errors import ImageError, NoFaceError

BATCH: Final = 32
# Crops of one forward pass, mirrored ones beside them. Larger passes gain less than they lose on fresh memory pages: on
# the project's 2-core machine 16 ms an image at 4, 36 ms at 64, of which 25 in the kernel.
FORWARD: Final = 2


@dataclass(frozen=True, eq=False)
class Acquired:
    """What became of images, in the order given: embeddings of those with a face, and why the others have none.

    `rows` are the images that `embeddings` (N, D) belong to; `failed` maps an image to its error code; `digests` are
    the SHA-256 of every file; `num_multiple` images showed more than one face.
    """

    rows: tuple[int, ...]
    embeddings: NDArray[np.float64] = field(repr=False)
    failed: dict[int, str]
    digests: tuple[str, ...]
    num_multiple: int


def embed_images(backbone: Backbone, paths: Sequence[Path], tell: Callable[[str], None]) -> Acquired:
    """Return embeddings f(x) + f(mirrored x) of the central face of each image file, on all cores.

    Detection is YuNet, alignment the five-point similarity, the choice of face `ChoiceRule.CENTRE`, without a quality
    gate. An image without a face or that is not an image is a failure to enrol, listed, never dropped.
    """
    torch.set_num_threads(1)  # one batch per core beats one batch on all cores
    cv2.setNumThreads(1)
    batches = [range(i, min(i + BATCH, len(paths))) for i in range(0, len(paths), BATCH)]
    worker = _Worker(backbone, paths)
    parts: list[_Part] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), initializer=worker.prepare) as pool:
        for part in pool.map(worker, batches):
            parts.append(part)
            if len(parts) % 20 == 0 or len(parts) == len(batches):
                tell(f"{min(len(parts) * BATCH, len(paths))} of {len(paths)} images")
    return Acquired(
        rows=tuple(itertools.chain.from_iterable(part.rows for part in parts)),
        embeddings=np.concatenate([np.zeros((0, backbone.input_spec.dim)), *(part.embeddings for part in parts)]),
        failed={row: code for part in parts for row, code in part.failed.items()},
        digests=tuple(itertools.chain.from_iterable(part.digests for part in parts)),
        num_multiple=sum(part.num_multiple for part in parts),
    )


def embed_flip_sum(backbone: Backbone, crops: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return f(x) + f(mirrored x) of aligned crops (N, H, W, 3), not normalised, (N, D)."""
    sums = [np.zeros((0, backbone.input_spec.dim))]
    with torch.inference_mode():
        for start in range(0, len(crops), FORWARD):
            some = crops[start : start + FORWARD]
            both = backbone.input_spec.network_input(np.concatenate([some, some[:, :, ::-1]]))
            out = backbone(torch.from_numpy(both)).numpy().astype(np.float64)
            sums.append(out[: len(some)] + out[len(some) :])
    return np.concatenate(sums)


@dataclass(frozen=True, eq=False)
class _Part:
    """What became of one batch."""

    rows: list[int]
    embeddings: NDArray[np.float64] = field(repr=False)
    failed: dict[int, str]
    digests: list[str]
    num_multiple: int


class _Worker:
    """Turns one batch of files into embeddings; each thread has a detector of its own."""

    def __init__(self, backbone: Backbone, paths: Sequence[Path]) -> None:
        self._backbone = backbone
        self._paths = paths
        self._pipelines: dict[int, FacePipeline] = {}

    def prepare(self) -> None:
        """Load this thread's detector."""
        self._pipelines[threading.get_ident()] = FacePipeline(self._backbone.input_spec, None, ChoiceRule.CENTRE)

    def __call__(self, rows: range) -> _Part:
        pipeline = self._pipelines[threading.get_ident()]
        digests, crops, found, failed, num_multiple = [], [], [], {}, 0
        for row in rows:
            data = self._paths[row].read_bytes()
            digests.append(hashlib.sha256(data).hexdigest())
            try:
                face = pipeline.acquire(decode_image(data))
            except (ImageError, NoFaceError) as error:
                failed[row] = error.code
                continue
            crops.append(face.crop)
            found.append(row)
            num_multiple += face.num_faces > 1
        embeddings = (
            embed_flip_sum(self._backbone, np.stack(crops)) if crops else np.zeros((0, self._backbone.input_spec.dim))
        )
        return _Part(found, embeddings, failed, digests, num_multiple)
