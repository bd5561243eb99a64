"""Images to embeddings for evaluation: Mien's own detector and alignment, a backbone in torch, mirror image summed."""

from __future__ import annotations

import hashlib
import io
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
from PIL import Image

from device_sdk.faces import ChoiceRule, FacePipeline, align_face, decode_image
from device_sdk.faces.crops import MASTER, fit_crops
from device_sdk.faces.images import WORKING_SIDE
from mien.backbones import Backbone
from mien.errors import ImageError, LowQualityError, NoFaceError
from mien.shell.doing import counting

BATCH: Final = 32
# Crops of one forward pass, mirrored ones beside them. Larger passes gain less than they lose on fresh memory pages: on
# the project's 2-core machine 16 ms an image at 4, 36 ms at 64, of which 25 in the kernel.
FORWARD: Final = 2


@dataclass(frozen=True, eq=False)
class Acquired:
    """Results of images, in the order given: embeddings of those with a face, and why the others have none.

    `rows` are the images that `embeddings` (N, D) belong to; `failed` maps an image to its error code; `digests` are
    the SHA-256 of every file; `num_multiple` images showed more than one face.
    """

    rows: tuple[int, ...]
    embeddings: NDArray[np.float64] = field(repr=False)
    failed: dict[int, str]
    digests: tuple[str, ...]
    num_multiple: int


def embed_images(
    backbone: Backbone,
    images: Sequence[Path | bytes],
    tell: Callable[[str], None],
    *,
    aligned: bool = False,
    landmarks: NDArray[np.float64] | None = None,
) -> Acquired:
    """Return embeddings f(x) + f(mirrored x) of the central face of each image, a file or its bytes, on all cores.

    Detection is YuNet, alignment the five-point similarity, the choice of face `ChoiceRule.CENTRE`, without a quality
    gate. `aligned` images are crops of 112x112 already; `landmarks` (N, 5, 2), (x, y) in pixels of the images as they
    are stored, stand for what the detector would find. An image without a face or that is not an image is a failure to
    enrol, listed, never dropped.
    """
    torch.set_num_threads(1)  # one batch per core beats one batch on all cores
    cv2.setNumThreads(1)
    batches = [range(i, min(i + BATCH, len(images))) for i in range(0, len(images), BATCH)]
    worker = _Worker(backbone, images, landmarks, aligned=aligned)
    parts: list[_Part] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), initializer=worker.prepare) as pool:
        for part, _ in zip(pool.map(worker, batches), counting("Embedding the images", batches), strict=True):
            parts.append(part)
            if len(parts) % 20 == 0 or len(parts) == len(batches):
                tell(f"{min(len(parts) * BATCH, len(images))} of {len(images)} images")
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
    """Results of one batch."""

    rows: list[int]
    embeddings: NDArray[np.float64] = field(repr=False)
    failed: dict[int, str]
    digests: list[str]
    num_multiple: int


class _Worker:
    """Turns one batch of images into embeddings; each thread has a detector of its own."""

    def __init__(
        self,
        backbone: Backbone,
        images: Sequence[Path | bytes],
        landmarks: NDArray[np.float64] | None,
        *,
        aligned: bool,
    ) -> None:
        self._backbone = backbone
        self._images = images
        self._landmarks = landmarks
        self._aligned = aligned
        self._pipelines: dict[int, FacePipeline] = {}

    def prepare(self) -> None:
        """Load this thread's detector, where one is needed."""
        if self._landmarks is None:
            spec = MASTER if self._aligned else self._backbone.input_spec
            pipeline = FacePipeline(spec, None, ChoiceRule.CENTRE, aligned=self._aligned)
            self._pipelines[threading.get_ident()] = pipeline

    def __call__(self, rows: range) -> _Part:
        digests, crops, found, failed, num_multiple = [], [], [], {}, 0
        for row in rows:
            image = self._images[row]
            data = image if isinstance(image, bytes) else image.read_bytes()
            digests.append(hashlib.sha256(data).hexdigest())
            try:
                crop, num_faces = self._acquire(row, data)
            except (ImageError, NoFaceError, LowQualityError) as error:
                failed[row] = error.code
                continue
            crops.append(crop)
            found.append(row)
            num_multiple += num_faces > 1
        embeddings = (
            embed_flip_sum(self._backbone, np.stack(crops)) if crops else np.zeros((0, self._backbone.input_spec.dim))
        )
        return _Part(found, embeddings, failed, digests, num_multiple)

    def _acquire(self, row: int, data: bytes) -> tuple[NDArray[np.uint8], int]:
        """Return the crop of one image, and how many faces were found in it."""
        pixels, spec = decode_image(data), self._backbone.input_spec
        if self._landmarks is not None:
            return align_face(pixels, _as_decoded(self._landmarks[row], data, pixels), spec), 1
        face = self._pipelines[threading.get_ident()].acquire(pixels)
        return fit_crops(face.crop[None], spec)[0] if self._aligned else face.crop, face.num_faces


def _as_decoded(points: NDArray[np.float64], data: bytes, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return an image's points as its pixels were decoded: a large picture comes out smaller than it is stored."""
    if max(pixels.shape[:2]) < WORKING_SIDE:
        return points
    with Image.open(io.BytesIO(data)) as stored:
        scale = max(pixels.shape[:2]) / max(stored.size)
    return np.asarray((points + 0.5) * scale - 0.5, dtype=np.float64)
