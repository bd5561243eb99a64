"""The papers' heads and losses in plain numpy float64, image by image and class by class, from the papers' text.

Nothing here is vectorised or shared with Mien's code; logarithms of sums are taken naively, so inputs must be moderate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def unit(v: Array) -> Array:
    """Return v / |v|."""
    return v / np.sqrt((v * v).sum())


def softmax_loss(logits: Array, label: int) -> float:
    """Return -log(e^{z_y} / sum_j e^{z_j}) of one image."""
    return -float(np.log(np.exp(logits[label]) / np.exp(logits).sum()))


def cosface_loss(features: Array, w: Array, labels: list[int], s: float, m: float) -> float:
    """CosFace eq 4: (1/N) sum_i -log( e^{s(cos t_y - m)} / (e^{s(cos t_y - m)} + sum_{j != y} e^{s cos t_j}) )."""
    losses = []
    for f, y in zip(features, labels, strict=True):
        cos = [float(unit(f) @ unit(row)) for row in w]
        top = np.exp(s * (cos[y] - m))
        losses.append(-np.log(top / (top + sum(np.exp(s * c) for j, c in enumerate(cos) if j != y))))
    return float(np.mean(losses))


def arcface_loss(features: Array, w: Array, labels: list[int], s: float, m: float) -> float:
    """ArcFace eq 3: (1/N) sum_i -log( e^{s cos(t_y + m)} / (e^{s cos(t_y + m)} + sum_{j != y} e^{s cos t_j}) )."""
    losses = []
    for f, y in zip(features, labels, strict=True):
        cos = [float(unit(f) @ unit(row)) for row in w]
        top = np.exp(s * np.cos(np.arccos(cos[y]) + m))
        losses.append(-np.log(top / (top + sum(np.exp(s * c) for j, c in enumerate(cos) if j != y))))
    return float(np.mean(losses))


def everybody_loss(
    features: Array, w: Array, labels: list[int], mean: Array, covariance: Array, others: float, s: float, m: float
) -> float:
    """CosFace over w and `others` more classes from N(mean, covariance), whose terms are integrated by quadrature.

    The product of an image z and such a class vector is N(z.mean, z'Cz): a Gauss-Hermite rule gives the expectation of
    e^(s product) without its closed form.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    losses = []
    for f, y in zip(features, labels, strict=True):
        z = unit(f)
        cos = [float(z @ unit(row)) for row in w]
        products = float(z @ mean) + np.sqrt(float(z @ covariance @ z)) * nodes
        expected = float((weights * np.exp(s * products)).sum() / np.sqrt(2 * np.pi))
        top = np.exp(s * (cos[y] - m))
        known = sum(np.exp(s * c) for j, c in enumerate(cos) if j != y)
        losses.append(-np.log(top / (top + known + others * expected)))
    return float(np.mean(losses))


def positive_hinge(features: Array, w: Array, m: float) -> float:
    """FedFace eq 7: (1/n) sum_j max(0, m - w^T f(x_j))^2 with f and w of length 1."""
    return float(np.mean([max(0.0, m - float(unit(f) @ unit(w))) ** 2 for f in features]))


def proximal(theta: list[Array], anchor: list[Array], strength: float) -> float:
    """FedProx eq 2 and FedFR-UDA's DCL: (lambda / 2) |theta - theta_r|^2 over all parameters."""
    return (
        strength
        / 2
        * sum(
            float((a - b) ** 2) for t, r in zip(theta, anchor, strict=True) for a, b in zip(t.flat, r.flat, strict=True)
        )
    )


def model_contrastive(features: Array, features_global: Array, features_previous: Array, tau: float) -> float:
    """FedFR eq 5: -log( e^{cos(f, f_glob)/tau} / (e^{cos(f, f_glob)/tau} + e^{cos(f, f_prev)/tau}) ), mean."""
    losses = []
    for f, g, p in zip(features, features_global, features_previous, strict=True):
        near, far = np.exp(unit(f) @ unit(g) / tau), np.exp(unit(f) @ unit(p) / tau)
        losses.append(-np.log(near / (near + far)))
    return float(np.mean(losses))


def dfc_loss(
    features: Array,
    pi: Array,
    pi_bias: Array,
    omega: Array,
    bias: Array,
    labels: list[int],
    *,
    lam: float,
    s: float,
    m: float,
    t: float,
) -> float:
    """FedFR eq 6 with g(z) = 2((z + 1)/2)^t - 1 and one bias a class; label -1 is an image of none of the classes.

    lambda/s log(1 + e^{-s(g(cos t_k) - m) - b}) + (1 - lambda)/s sum_{j != k} log(1 + e^{s(g(cos t_j) + m) + b})
    """
    total = []
    for f, y in zip(features, labels, strict=True):
        personal = unit(pi @ f + pi_bias)
        loss = 0.0
        for k in range(len(omega)):
            g = 2 * ((float(personal @ unit(omega[k])) + 1) / 2) ** t - 1
            if k == y:
                loss += lam / s * np.log1p(np.exp(-s * (g - m) - bias[k]))
            else:
                loss += (1 - lam) / s * np.log1p(np.exp(s * (g + m) + bias[k]))
        total.append(loss)
    return float(np.mean(total))


def distillation(logits: Array, teacher: Array, temperature: float) -> float:
    """T^2 KL(p || q), p and q the softmax of teacher and student at temperature T (Yu et al. 2020), mean."""
    losses = []
    for z, t in zip(logits, teacher, strict=True):
        p = np.exp(t / temperature) / np.exp(t / temperature).sum()
        q = np.exp(z / temperature) / np.exp(z / temperature).sum()
        losses.append(temperature**2 * sum(a * np.log(a / b) for a, b in zip(p, q, strict=True)))
    return float(np.mean(losses))


def numeric_gradient(function: Callable[[Array], float], at: Array, step: float = 1e-6) -> Array:
    """Return central differences of a scalar function, element by element."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient
