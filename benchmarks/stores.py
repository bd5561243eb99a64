"""Data sets in one mapped file beside folders of PNG: how soon they are open, and how many crops a second they give.

The same crops lie in a data set (`mien-sim data import`) and as PNG files. Both are read in the same random order, one
after the other in every repetition, in processor time, of which other programs take none; everything fits into the page
cache. `read_ratio` is the PNG files' time over the data set's, for crops that are copied out as training would;
`imread_ratio` is the same against OpenCV alone, without the checks of the product's decoder. `open_s` is how long it
takes to open the data set and look at one crop; `index_*` are those of a data set of a million identities of one pixel.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np

from benchmarks import _common
from device_sdk.faces import ChoiceRule, FacePipeline, decode_image
from mien.methods.base import Crops
from mien.specs import FaceInputSpec
from simulation.bench.turns import in_turns, over, timed
from simulation.faces.datasets import read_people
from simulation.faces.store import CropStore
from simulation.faces.writer import Imported, StoreTerms, StoreWriter
from simulation.synthetic import committed_faces

TERMS: Final = StoreTerms("CC0", "the faces that come with the package", is_synthetic=True)
IMAGES_EACH: Final = 10
READ: Final = 1000
REPETITIONS: Final = 5
TURNS: Final = 7


def main() -> None:
    """Run the benchmark from the command line."""
    args = _common.options("stores", (__doc__ or "").split("\n\n")[0]).parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return all figures."""
    images, identities = (5_000, 100_000) if args.quick else (100_000, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="mien-stores-") as folder:
        root = Path(folder)
        _common.progress(f"{images:,} crops in a data set, and {READ:,} of them as PNG")
        faces = _faces()
        _write(root / "set", images, faces)
        files = _write_png(root / "png", faces)
        figures = _reading(root / "set", files)
        _common.progress(f"an index of {identities:,} identities")
        figures |= _indexed(root / "index", identities)
    return {
        "images": images,
        "identities": identities,
        **figures,
        "quick": args.quick,
        "machine": _common.machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def _faces() -> Crops:
    """Return aligned crops of nobody (N, 112, 112, 3)."""
    people = dict(list(committed_faces("public").items())[:4])
    return read_people(people, FacePipeline(FaceInputSpec(), None, ChoiceRule.CENTRE)).crops


def _write(to: Path, images: int, faces: Crops) -> None:
    with StoreWriter(to, TERMS, height=112, width=112, plan={}) as writer:
        for number in range(images // IMAGES_EACH):
            chosen = np.arange(number, number + IMAGES_EACH) % len(faces)
            writer.add(Imported(f"{number:08d}", faces[chosen], tuple(map(str, range(IMAGES_EACH)))))
        writer.finish("benchmark")


def _write_png(folder: Path, faces: Crops) -> list[Path]:
    folder.mkdir()
    files = [folder / f"{number}.png" for number in range(READ)]
    for number, file in enumerate(files):
        cv2.imwrite(str(file), np.ascontiguousarray(faces[number % len(faces)][..., ::-1]))
    return files


def _reading(folder: Path, files: Sequence[Path]) -> dict[str, Any]:
    opening = [_opened_s(folder) for _ in range(REPETITIONS)]
    store = CropStore(folder)
    order = np.random.default_rng(0).permutation(store.manifest.images)[:READ]
    reading: Mapping[str, Callable[[], object]] = {
        "mapped": lambda: _touch(store, order),
        "decoded": lambda: [decode_image(file) for file in files],
        "plain": lambda: [cv2.imread(str(file)) for file in files],
    }
    for read in reading.values():
        read()
    took = in_turns({name: partial(timed, read) for name, read in reading.items()}, TURNS)
    mapped, decoded = (statistics.median(cpu_s for _, cpu_s in took[name]) for name in ("mapped", "decoded"))
    return {
        "open_s": round(min(opening), 4),
        "read_per_s": round(READ / mapped),
        "png_per_s": round(READ / decoded),
        "read_ratio": round(over(took["decoded"], took["mapped"])[1], 1),
        "imread_ratio": round(over(took["plain"], took["mapped"])[1], 1),
    }


def _touch(store: CropStore, order: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    crops = store.crops
    for image in order:
        crops[image].copy()


def _opened_s(folder: Path) -> float:
    began = time.perf_counter()
    CropStore(folder).crops_of(0).sum()
    return time.perf_counter() - began


def _indexed(folder: Path, identities: int) -> dict[str, Any]:
    pixel = np.zeros((1, 1, 1, 3), np.uint8)
    with StoreWriter(folder, TERMS, height=1, width=1, plan={}) as writer:
        for number in range(identities):
            writer.add(Imported(f"{number:08d}", pixel, ("0",)))
        writer.finish("benchmark")
    opening = [_opened_s(folder) for _ in range(REPETITIONS)]
    store = CropStore(folder)
    names = [f"{number:08d}" for number in np.random.default_rng(0).integers(0, identities, 1000)]
    by_name_s = min(_cpu_s(lambda: [store.number(name) for name in names]) for _ in range(REPETITIONS))
    by_number_s = min(_cpu_s(lambda: [store.crops_of(i) for i in range(1000)]) for _ in range(REPETITIONS))
    return {
        "index_open_s": round(min(opening), 4),
        "index_name_us": round(1e6 * by_name_s / 1000, 1),
        "index_number_us": round(1e6 * by_number_s / 1000, 1),
    }


def _cpu_s(call: Callable[[], object]) -> float:
    return timed(call)[1]


if __name__ == "__main__":
    main()
