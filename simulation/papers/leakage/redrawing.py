"""Faces drawn again from class embeddings, judged by whether a recogniser takes them for the person.

Two attacks that need nothing but public photos and the released recogniser. *Regression*: a ridge regression from
embeddings to the coordinates of a face in the principal components of public crops ("eigenfaces"). *Refined*: from
there, steps through the recogniser itself, which the server has, until the drawing's embedding nears the class
embedding. Drawings live in memory for as long as they are compared; none is ever stored, whoever's face it is.

Suffixes: N images or people, D embedding, C principal components, X pixels of a small crop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mien.backbones import Backbone
from mien.evaluation import Comparisons, det_curve, normalise, point_at_fmr
from mien.methods.base import Crops
from simulation.papers.leakage.scores import TARGET_FMR, Matrix, cosines, found_among_best

SMALL: Final = 56
COMPONENTS: Final = 256
RIDGE: Final = 0.3
LEARNING_RATE: Final = 0.1
PRIOR: Final = 0.0005
FORWARD: Final = 4


@dataclass(frozen=True)
class Drawer:
    """Eigenfaces of public crops, and the regression from embeddings to them.

    `mean_face` (X,), `components` (C, X), `deviations` of public coordinates (C,), `mean_embedding` (D,), `weights`
    (D, C).
    """

    mean_face: Matrix = field(repr=False)
    components: Matrix = field(repr=False)
    deviations: Matrix = field(repr=False)
    mean_embedding: Matrix = field(repr=False)
    weights: Matrix = field(repr=False)

    @classmethod
    def learn(cls, crops: Crops, embeddings_ND: Matrix) -> Drawer:
        """Return what public crops (N, 112, 112, 3) and their embeddings teach."""
        pixels_NX = np.stack([_small(crop) for crop in crops])
        mean_X = pixels_NX.mean(axis=0)
        centred_NX = pixels_NX - mean_X
        values, vectors = np.linalg.eigh(centred_NX @ centred_NX.T)
        kept = min(COMPONENTS, len(crops) // 2)
        scale = np.sqrt(np.maximum(values[-kept:], 1e-9))
        components_CX = (vectors[:, -kept:] / scale).T @ centred_NX
        coordinates_NC = centred_NX @ components_CX.T
        mean_D = embeddings_ND.mean(axis=0)
        centred_ND = embeddings_ND - mean_D
        gram_DD = centred_ND.T @ centred_ND
        ridge_DD = RIDGE * np.trace(gram_DD) / len(gram_DD) * np.eye(len(gram_DD))
        weights_DC = np.linalg.solve(gram_DD + ridge_DD, centred_ND.T @ coordinates_NC)
        return cls(mean_X, components_CX, coordinates_NC.std(axis=0), mean_D, weights_DC)

    def coordinates(self, w_ND: Matrix) -> Matrix:
        """Return the drawing of each class embedding as coordinates (N, C)."""
        return (w_ND - self.mean_embedding) @ self.weights

    def draw(self, coordinates_NC: Matrix) -> Crops:
        """Return drawings as crops (N, 112, 112, 3)."""
        pixels_NX = np.clip(self.mean_face + coordinates_NC @ self.components, 0, 255).astype(np.uint8)
        crops: Crops = np.stack([cv2.resize(row.reshape(SMALL, SMALL, 3), (112, 112)) for row in pixels_NX])
        return crops

    def refine(self, backbone: Backbone, start_NC: Matrix, w_ND: Matrix, steps: int) -> Matrix:
        """Return coordinates after `steps` of Adam on 1 - cos(f(drawing), w), held near the start."""
        refined = []
        for first in range(0, len(start_NC), FORWARD):
            target_ND = torch.from_numpy(w_ND[first : first + FORWARD].astype(np.float32))
            scaled_NC = torch.from_numpy((start_NC[first : first + FORWARD] / self.deviations).astype(np.float32))
            loss = partial(self._loss, backbone, scaled_NC, target_ND)
            refined.append(_adam(loss, scaled_NC, steps).numpy().astype(np.float64) * self.deviations)
        return np.concatenate(refined)

    def _loss(self, backbone: Backbone, start_NC: Tensor, target_ND: Tensor, current_NC: Tensor) -> Tensor:
        """Return 1 - cos(f(drawing), w) and the distance from the start; coordinates are in standard deviations."""
        spec = backbone.input_spec
        mean_face = torch.from_numpy(self.mean_face.astype(np.float32))
        components = torch.from_numpy((self.components * self.deviations[:, None]).astype(np.float32))
        pixels_NX = (mean_face + current_NC @ components).clamp(0, 255)
        small = pixels_NX.reshape(-1, SMALL, SMALL, 3).permute(0, 3, 1, 2)
        image = functional.interpolate(small, size=(spec.height, spec.width), mode="bilinear")
        image = image.flip(1) if spec.colour == "BGR" else image
        likeness = functional.cosine_similarity(backbone((image - spec.mean) / spec.scale), target_ND)
        return (1 - likeness).sum() + PRIOR * ((current_NC - start_NC) ** 2).sum()


def _adam(loss: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """Return where `steps` of Adam (Kingma and Ba 2015, algorithm 1) lead; torch.optim would load torch's compiler."""
    current, first, second = start.clone().requires_grad_(True), torch.zeros_like(start), torch.zeros_like(start)
    for step in range(1, steps + 1):
        (gradient,) = torch.autograd.grad(loss(current), current)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        moved = LEARNING_RATE * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        current = (current.detach() - moved).requires_grad_(True)
    return current.detach()


def _small(crop: Crops) -> Matrix:
    """Return a crop at SMALL x SMALL as one row of numbers, (X,)."""
    row: Matrix = cv2.resize(crop, (SMALL, SMALL), interpolation=cv2.INTER_AREA).reshape(-1).astype(np.float64)
    return row


@dataclass(frozen=True)
class Judge:
    """A recogniser that compares a picture with the templates of everybody, at the threshold of its FMR of 1 %."""

    embed: Callable[[Crops], Matrix] = field(repr=False)
    templates: Matrix = field(repr=False)
    threshold: float

    @classmethod
    def of(cls, embed: Callable[[Crops], Matrix], templates_CD: Matrix) -> Judge:
        """Return the judge over candidates' templates, its threshold set on templates of different people."""
        scores = cosines(templates_CD, templates_CD)
        different = scores[np.triu_indices(len(scores), 1)]
        # Mated scores do not move the threshold at an FMR; one certain match completes the curve.
        curve = det_curve(Comparisons(np.ones(1), different))
        return cls(embed, templates_CD, point_at_fmr(curve, TARGET_FMR).threshold)

    def verdicts(self, crops: Crops) -> dict[str, float]:
        """Return how often crops (N, ...) pass for their person, candidate i, and for the next one (the control)."""
        own_CD, num = self.templates, len(crops)
        scores_NC = cosines(normalise(self.embed(crops)), own_CD)
        neighbour = np.roll(np.arange(len(own_CD)), -1)[:num]
        return {
            "matched": float((scores_NC[np.arange(num), np.arange(num)] >= self.threshold).mean()),
            "control": float((scores_NC[np.arange(num), neighbour] >= self.threshold).mean()),
            "found": found_among_best(scores_NC, np.eye(num, len(own_CD), dtype=np.bool_)),
            "people": float(num),
            "candidates": float(len(own_CD)),
        }
