"""Faces of nobody for tests, and the recogniser that comes with an ordinary install."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from device_sdk.models.models import Model
from device_sdk.models.packaged import sface_path
from mien.backbones import build_backbone, load_theta
from mien.backbones.importers import import_model
from mien.layout import model_id
from mien.methods.base import Crops, Embeddings
from mien.specs import Threshold
from simulation.synthetic import committed_faces

OWNER, STRANGER = "asian_0007", "caucasian_0002"
"""Two of the committed identities that SFace tells apart: own images score above 0.8, the other's below 0.6."""

DECIDES_AT = 0.75


def images_of(identity: str) -> list[Path]:
    """Return a committed identity's image files in order."""
    return list(committed_faces("phones")[identity])


@cache
def sface() -> Model:
    """Return SFace with a threshold for the synthetic population."""
    imported = import_model(sface_path().read_bytes(), "SFace")
    identity = model_id(imported.layout.sha256, imported.theta)
    spec = imported.spec
    threshold = Threshold(DECIDES_AT, 1e-3, "made up for tests", 100, 1000, identity, "2026-01-01")
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
