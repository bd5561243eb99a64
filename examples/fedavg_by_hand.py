"""FedAvg by hand: all of it in 60 lines of torch, slow on purpose, so that each line can be held against the paper.

Source: McMahan et al. (2017), Algorithm 1, with FedFace's positive loss (eq 7). `mien/methods/fedavg.py` is the same
for phones, private sums and simulations; tests/examples compares the two. Run: python examples/fedavg_by_hand.py
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

ROUNDS, EPOCHS, LR, MARGIN = 3, 2, 0.05, 0.9
Crops = NDArray[np.uint8]


def recogniser() -> nn.Sequential:
    """Return a model small enough to follow: the 48 means of a crop's squares, and a linear map to 8 numbers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(28), nn.Flatten(), nn.Linear(48, 8))


def phones() -> dict[str, Crops]:
    """Return each phone's crops (N, 112, 112, 3), coloured squares of nobody, more on one phone than on another."""
    squares = {f"phone{i}": np.random.default_rng(i).integers(0, 256, (2 + i, 4, 4, 3)) for i in range(4)}
    return {name: each.astype(np.uint8).repeat(28, axis=1).repeat(28, axis=2) for name, each in squares.items()}


def embed(model: nn.Module, crops: Crops) -> Tensor:
    """Return the crops' embeddings (N, 8) at length 1."""
    return nn.functional.normalize(model((torch.from_numpy(crops).float().permute(0, 3, 1, 2) - 127.5) / 128))


def train_on_phone(model: nn.Module, crops: Crops, w: Tensor | None) -> Tensor:
    """Train the phone's copy of the model, and return its class embedding, which never leaves the phone."""
    if w is None:  # the first time here: the mean feature
        w = nn.functional.normalize(embed(model, crops).mean(0), dim=0).detach()
    for _ in range(EPOCHS):
        cosine = embed(model, crops) @ nn.functional.normalize(w.requires_grad_(), dim=0)
        loss = (MARGIN - cosine).relu().square().mean()
        *gradients, of_w = torch.autograd.grad(loss, [*model.parameters(), w])
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(LR * gradient)
            w = nn.functional.normalize(w - LR * of_w, dim=0)
    return w


def fedavg(model: nn.Module, faces: dict[str, Crops]) -> nn.Module:
    """Return the model after all rounds: theta <- theta + sum_i n_i (theta_i - theta) / sum_i n_i in each."""
    kept: dict[str, Tensor] = {}
    for _ in range(ROUNDS):
        total = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for name, crops in faces.items():
            local = copy.deepcopy(model)
            kept[name] = train_on_phone(local, crops, kept.get(name))
            for addend, after, before in zip(total, local.parameters(), model.parameters(), strict=True):
                addend += len(crops) * (after - before).detach()
        with torch.no_grad():
            for parameter, addend in zip(model.parameters(), total, strict=True):
                parameter.add_(addend / sum(len(crops) for crops in faces.values()))
    return model


if __name__ == "__main__":
    trained = fedavg(recogniser(), phones())
    own = {name: float(embed(trained, crops).detach().mean(0).norm()) for name, crops in phones().items()}
    print("length of each phone's mean embedding after training (1: all alike):", own)
