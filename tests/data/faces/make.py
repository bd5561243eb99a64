"""Draws the pictures of this folder again: `python tests/data/faces/make.py`; needs the extra `[synthetic]`."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from PIL import Image as PillowImage

from simulation.synthetic.generate import domain_of
from simulation.synthetic.model import FaceModel
from simulation.synthetic.parameters import draw_identity, draw_image
from simulation.synthetic.render import Image, develop, draw, encode_jpeg

FOLDER = Path(__file__).parent
SEED = 70  # other people than the committed set's, so enrolment tests never meet them there
EXIF_ORIENTATION = 0x0112


def render(model: FaceModel, identity: int, size_px: int = 224, yaw_rad: float = 0.1) -> Image:
    """A calm, well-lit picture (BGR) of one identity."""
    person = draw_identity(SEED, identity, domain_of(identity))
    image = replace(
        draw_image(SEED, identity, 0),
        actions={},
        yaw_rad=yaw_rad,
        pitch_rad=0.0,
        roll_rad=0.0,
        centre=(0.5, 0.47),
        light=(0.3, 0.9, 0.3),
        ambient=0.5,
        exposure=1.0,
        blur_px=0.0,
        noise=1.5,
    )
    return develop(draw(model.bust, model.vertices(person, image), person.look, image, size_px), image)


def rotated_with_tag(picture: Image) -> bytes:
    """JPEG whose pixels lie on their side and whose EXIF orientation 6 says: turn a quarter clockwise to view."""
    sideways = cv2.rotate(picture, cv2.ROTATE_90_COUNTERCLOCKWISE)
    exif = PillowImage.Exif()
    exif[EXIF_ORIENTATION] = 6
    out = io.BytesIO()
    PillowImage.fromarray(cv2.cvtColor(sideways, cv2.COLOR_BGR2RGB)).save(out, "JPEG", quality=90, exif=exif)
    return out.getvalue()


def backdrop() -> Image:
    """A shaded, slightly noisy picture (BGR) with nobody in it."""
    ramp = np.linspace(90.0, 180.0, 224)[:, None, None] * (1.0, 0.9, 0.8)
    noise = np.random.default_rng(SEED).normal(0.0, 2.0, (224, 224, 3))
    return np.asarray(np.clip(ramp + noise, 0, 255), dtype=np.uint8)


def main() -> None:
    """Write every picture of the folder."""
    model = FaceModel()
    first, second, third = (render(model, identity) for identity in range(3))
    tall = np.vstack([third, np.repeat(third[-1:], 76, axis=0)])  # not square, so a lost rotation shows in the shape
    pictures = {
        "two_faces.jpg": encode_jpeg(np.hstack([first, second]), 88),
        "no_face.jpg": encode_jpeg(backdrop(), 88),
        "dark.jpg": encode_jpeg(np.asarray(np.round(second * 0.12), dtype=np.uint8), 92),
        "blurred.jpg": encode_jpeg(np.asarray(cv2.GaussianBlur(second, (0, 0), 3.0), dtype=np.uint8), 88),
        "turned.jpg": encode_jpeg(render(model, 1, yaw_rad=1.15), 88),
        "rotated_exif6.jpg": rotated_with_tag(tall),
    }
    for name, data in pictures.items():
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
