"""Faces of nobody for tests, and the recogniser that comes with an ordinary install."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from device_sdk.models import Model
from mien.backbones import build_backbone, load_theta
from mien.backbones.importers import import_model
from mien.layout import model_id
from mien.methods.base import Crops, Embeddings
from mien.specs import Threshold
from simulation.pretrained import sface_path

ROOT = Path(__file__).resolve().parents[2]
OWNER, STRANGER = "asian_0529", "caucasian_0449"
"""Two identities that SFace tells apart: on these renders own images score above 0.85, the other's below 0.7."""

DECIDES_AT = 0.78


def faces_root() -> Path:
    """Return the folder of synthetic identities, one folder each; skips the test where there is none."""
    data = os.environ.get("MIEN_DATA", "")
    for folder in (ROOT / "simulation" / "synthetic" / "faces", Path(data) / "synthetic_raw"):
        if (folder / OWNER).is_dir():
            return folder
    pytest.skip(f"no synthetic faces: {OWNER} is neither in simulation/synthetic/faces nor in $MIEN_DATA/synthetic_raw")


def images_of(identity: str) -> list[Path]:
    """Return an identity's image files in order."""
    return sorted((faces_root() / identity).glob("*.jpg"))


@cache
def sface() -> Model:
    """Return SFace with a threshold for the synthetic population."""
    imported = import_model(sface_path().read_bytes(), "SFace")
    identity = model_id(imported.layout.sha256, imported.theta)
    spec = imported.spec
    threshold = Threshold(DECIDES_AT, 1e-3, "made up for tests", 100, 1000, identity, "2026-01-01")
    from dataclasses import replace

    return Model(identity, replace(spec, thresholds=(threshold,)), imported.layout, imported.theta, None)


class Engine:
    """Embeds with a torch backbone, one thread."""

    def __init__(self, model: Model) -> None:
        torch.set_num_threads(1)
        self._model = model
        self._net = build_backbone(model.spec.backbone, model.spec.input)

    def embed(self, theta: np.ndarray, crops: Crops) -> Embeddings:
        load_theta(self._net, self._model.layout, theta)
        with torch.no_grad():
            features = self._net(torch.from_numpy(self._model.spec.input.network_input(crops)))
        return torch.nn.functional.normalize(features).numpy()

    def train(self, *_: object) -> None:
        raise AssertionError("these tests do not train")
