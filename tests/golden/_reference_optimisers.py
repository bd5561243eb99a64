"""FedProx, SCAFFOLD, MimeLite, PFM and FV in plain numpy float64, written from the papers, for a linear recogniser.

A device is its images x (N, 12), means over quarters, its classes y (N,) and class vectors w (K, D); the model is
A (D, 12): e = A x, logits e w^T, loss the mean of -log softmax. Every step takes all images. Nothing of the product is
imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Party:
    """One device or trainer, with what it keeps between rounds."""

    x: Array
    y: NDArray[np.int64]
    w: Array
    velocity: Array | None = None
    control: Array | None = None

    @property
    def n(self) -> int:
        return len(self.x)


def gradients(a: Array, party: Party) -> tuple[Array, Array]:
    """Return the gradients of the loss in A and in W."""
    e_ND = party.x @ a.T
    logits = e_ND @ party.w.T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(party.n), party.y] -= 1
    p /= party.n
    return (p @ party.w).T @ party.x, p.T @ e_ND


def descend(a: Array, party: Party, steps: int, lr: float, correct: Callable[[Array, Array], Array]) -> Array:
    """Return A after plain steps under a correction of (gradient, A); W takes plain steps of its own."""
    for _ in range(steps):
        g, h = gradients(a, party)
        party.w = party.w - lr * h
        a = a - lr * correct(g, a)
    return a


def average(arrays: Sequence[Array], weights: NDArray[np.floating] | NDArray[np.int64]) -> Array:
    """Return sum_i w_i a_i / sum_i w_i."""
    mean: Array = np.tensordot(weights, np.stack(arrays), 1) / weights.sum()
    return mean


def fedprox_round(a: Array, parties: Sequence[Party], steps: int, lr: float, mu: float) -> Array:
    """Li et al. 2020, eq 2: the gradient of F_k + mu/2 |w - w_t|^2; weights n_k / n."""
    ends = [descend(a, p, steps, lr, lambda g, y: g + mu * (y - a)) for p in parties]
    return average(ends, np.array([p.n for p in parties]))


def scaffold_round(
    x: Array, c: Array, parties: Sequence[Party], steps: int, lr: float, num_clients: int
) -> tuple[Array, Array]:
    """Karimireddy et al. 2020 (SCAFFOLD), Algorithm 1 with option II and global rate 1."""
    dys, dcs = [], []
    for p in parties:
        own = np.zeros_like(c) if p.control is None else p.control
        y = descend(x, p, steps, lr, functools.partial(_corrected, own, c))
        plus = own - c + (x - y) / (steps * lr)
        dys.append(y - x)
        dcs.append(plus - own)
        p.control = plus
    return x + np.mean(dys, axis=0), c + len(parties) / num_clients * np.mean(dcs, axis=0)


def _corrected(own: Array, c: Array, g: Array, _y: Array) -> Array:
    return g - own + c


def mimelite_round(
    x: Array, m: Array, parties: Sequence[Party], steps: int, lr: float, beta: float
) -> tuple[Array, Array]:
    """Karimireddy et al. 2020 (Mime), MimeLite, momentum SGD: U(g, m) = (1-b) g + b m; clients weighted by images."""
    ends, fulls = [], []
    for p in parties:
        fulls.append(gradients(x, p)[0])
        ends.append(descend(x, p, steps, lr, lambda g, _y: (1 - beta) * g + beta * m))
    images = np.array([p.n for p in parties])
    return average(ends, images), (1 - beta) * average(fulls, images) + beta * m


def pfm_local(theta: Array, m: Array, p: Party, steps: int, lr: float, beta: float) -> Array:
    """Bai et al. 2021, Algorithm 1, lines 5-11."""
    velocity = np.zeros_like(p.w) if p.velocity is None else p.velocity
    for _ in range(steps):
        g, h = gradients(theta, p)
        theta = theta - lr * (g + beta * m / steps)
        velocity = beta * velocity + h
        p.w = p.w - lr * velocity
    p.velocity = velocity
    return theta


def pfm_server(before: Array, thetas: Sequence[Array], w: Array, lr: float) -> tuple[Array, Array]:
    """Return (Theta_r, M_r): Algorithm 1, lines 14-16, with weights that add up to 1."""
    after: Array = np.tensordot(w, np.stack(thetas), 1)
    return after, (before - after) / lr


def local_norm(s: Array, epsilon: float = 0.001) -> Array:
    """Eq 8."""
    normalised: Array = s / np.sqrt(((s - s.mean()) ** 2).mean() + epsilon)
    return normalised


def moving_norm(
    s: Array, mu: float, nu: float, gamma: float = 0.01, epsilon: float = 0.001
) -> tuple[Array, float, float]:
    """Eq 9-11: scores, mu and nu."""
    mu = (1 - gamma) * mu + gamma * s.mean()
    nu = (1 - gamma) * nu + gamma * ((s - mu) ** 2).sum() / len(s)
    return s / np.sqrt(nu + epsilon), mu, nu


def mix(w: Array, candidates: Sequence[Array], normalised: Sequence[Array], phi: float = 0.01) -> tuple[Array, int]:
    """Eq 12 and 13: normalised scores are one array (T,) a validator."""
    best = int(np.argmax(np.sum(normalised, axis=0)))
    return (1 - phi) * w + phi * candidates[best], best
