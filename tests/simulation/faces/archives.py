"""Small sources of nobody's faces, for importing."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from mien.methods.base import Crops
from tests.device_sdk.made_up_people import noise_crops
from tests.simulation.faces.test_recordio import image_record, range_record, write

PEOPLE = {"Bo": 3, "Ada": 2, "Äpfel": 1, "Cid": 4}
"""Name -> number of images, in no order."""


def crops_of(name: str) -> Crops:
    """Return somebody's crops (N, 112, 112, 3)."""
    return noise_crops(sum(name.encode()), PEOPLE[name])


def encoded(crop: Crops) -> bytes:
    """Return a crop as a PNG, which loses nothing."""
    done, data = cv2.imencode(".png", np.ascontiguousarray(crop[..., ::-1]))
    assert done
    return bytes(data.tobytes())


def folder_of_people(root: Path) -> Path:
    """Write everybody's crops as name/N.png, with one file that is no image and somebody without any good one."""
    for name in PEOPLE:
        (root / name).mkdir(parents=True)
        for number, crop in enumerate(crops_of(name)):
            (root / name / f"{number}.png").write_bytes(encoded(crop))
    (root / "Bo" / "broken.png").write_bytes(b"no image")
    (root / "Nobody").mkdir()
    (root / "Nobody" / "x.png").write_bytes(b"\x89PNG")
    return root


def archive(folder: Path) -> Path:
    """Write everybody's crops as an archive of insightface's form."""
    folder.mkdir(parents=True)
    records, spans = dict[int, bytes](), []
    for label, name in enumerate(PEOPLE):
        for crop in crops_of(name):
            records[len(records) + 1] = image_record(float(label), encoded(crop))
        spans.append((len(records) + 1 - PEOPLE[name], len(records) + 1))
    first = len(records) + 1
    people = {first + number: range_record(*map(float, span)) for number, span in enumerate(spans)}
    head = {0: range_record(float(first), float(first + len(spans)))}
    return write(folder, {**head, **records, **people})
