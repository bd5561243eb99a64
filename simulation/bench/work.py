"""The work that every simulator is given: one network, and features in place of images.

Imports numpy and torch only, so that it also runs in the environments of other simulators.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

FEATURES: Final = 192
DIM: Final = 128
MARGIN: Final = 0.9
RATE: Final = 0.01
HIDDEN: Final = {"1e4": 32, "1e6": 3072, "1e7": 31_000}
"""Hidden units by the size that they make: 10,432, 989,312 and 9,982,128 trained parameters, slopes included."""


def tail(size: str) -> nn.Sequential:
    """Return what is trained: two linear maps with a PReLU between them, the same weights each time."""
    hidden = HIDDEN[size]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, hidden), nn.PReLU(hidden), nn.Linear(hidden, DIM))


def client(number: int, images: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a phone's features (images, FEATURES), and its class embedding once for each image (images, DIM)."""
    rng = np.random.default_rng(number)
    own = rng.standard_normal(DIM).astype(np.float32)
    features = rng.standard_normal((images, FEATURES)).astype(np.float32)
    return features, np.repeat((own / np.linalg.norm(own))[None], images, axis=0)


def loss_of(emb_BD: Tensor, own_BD: Tensor) -> Tensor:
    """Return the positive hinge, which FedAvg minimises in FedFace's experiments."""
    cosine_B = (nn.functional.normalize(emb_BD) * own_BD).sum(dim=1)
    return (MARGIN - cosine_B).clamp(min=0).square().mean()
