"""The gate behind a recogniser: closed it embeds as before, open each population has its expert and one threshold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mien.backbones import build_backbone, layout_of, load_theta
from mien.backbones.gate import GatedAdapter, Population
from mien.backbones.importers import with_gate
from mien.errors import ConfigError
from mien.methods.gate import GATE, POPULATION, closed, population_of
from mien.methods.statistics import frozen, is_gated
from mien.specs import FaceInputSpec
from tests.mien.backbones._models import pattern_crops
from tests.mien.backbones.test_adapter import imported

pytestmark = pytest.mark.numerics

DIM = 4


def population(dim: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    features = np.random.default_rng(3).normal(1, 2, (3 * dim, dim))
    return population_of(features, np.arange(3 * dim) // 3)


def test_a_model_with_a_closed_gate_embeds_as_before() -> None:
    before = imported("mobilefacenet192")
    after = with_gate(before, population(192))
    assert (after.spec.backbone, after.spec.input.dim) == ("mobilefacenet192_gate", 385)
    part = after.layout.part(after.spec.trainable)
    assert is_gated(part)
    assert frozen(part, after.theta) is after.theta, "the gate is closed as a phone closes it"
    plain, gated = build_backbone("mobilefacenet192"), build_backbone(after.spec.backbone, after.spec.input)
    load_theta(plain, before.layout, before.theta)
    load_theta(gated, after.layout, after.theta)
    x_BCHW = torch.from_numpy(plain.input_spec.network_input(pattern_crops(2)))
    with torch.no_grad():
        found, wanted = gated(x_BCHW).numpy(), plain(x_BCHW).numpy()
    np.testing.assert_array_equal(found[:, 192:384], wanted)
    np.testing.assert_allclose(
        np.delete(found, slice(192, 384), 1), 0, atol=2e-6 * np.linalg.norm(wanted, axis=1).max()
    )


def test_the_stages_behind_the_recogniser() -> None:
    layout = layout_of(build_backbone("sface_gate"))
    names = [entry.name for entry in layout.entries][-8:]
    assert names == [*POPULATION, "adapter.weight", "adapter.bias", *GATE]
    assert layout.part(("adapter.*",)).size == 128 * 129 + len(closed(128))
    with pytest.raises(ConfigError, match="twice the recogniser's and one more"):
        build_backbone("sface_gate", FaceInputSpec(dim=256))
    with pytest.raises(ConfigError, match="has no form with a gate; those that have: mobilefacenet192, sface"):
        with_gate(imported("mobilefacenet_folded"), {})


def experts(log_odds: float, own_level: float, new_level: float) -> tuple[torch.Tensor, ...]:
    """Return pictures' features, what the adapter makes of them, and their embeddings behind a gate of these odds."""
    torch.manual_seed(0)
    first, second = Population(DIM), GatedAdapter(DIM)
    with torch.no_grad():
        first.level.fill_(own_level)
        second.level.fill_(new_level)
        second.gate_bias.fill_(log_odds)
        x = 3 * torch.randn(6, DIM)
        return x, x @ second.weight.T + second.bias, second(first(x))


def cosines(x: torch.Tensor) -> torch.Tensor:
    unit = torch.nn.functional.normalize(x)
    return unit @ unit.T


@pytest.mark.parametrize("log_odds", [-40.0, -1.0, 0.0, 2.0, 40.0])
def test_embeddings_are_as_long_as_features_whatever_the_gate(log_odds: float) -> None:
    x, _, e = experts(log_odds, 0.3, 0.5)
    torch.testing.assert_close(e.norm(dim=1), x.norm(dim=1), rtol=0.5, atol=0)
    if abs(log_odds) == 40.0:
        torch.testing.assert_close(e.norm(dim=1), x.norm(dim=1))


@pytest.mark.parametrize(("own_level", "new_level"), [(0.3, 0.5), (0.5, 0.3), (0.4, 0.4)])
def test_both_experts_have_one_level_and_keep_their_order(own_level: float, new_level: float) -> None:
    """Cosines of the expert whose level is lower become (1 - s) c + s; the other's are what they were."""
    for log_odds, level in ((-40.0, own_level), (40.0, new_level)):
        x, y, e = experts(log_odds, own_level, new_level)
        higher = max(own_level, new_level)
        lift = (higher - level) / (1 - level)
        torch.testing.assert_close(cosines(e), (1 - lift) * cosines(x if log_odds < 0 else y) + lift, atol=2e-5, rtol=0)
        assert (1 - lift) * level + lift == pytest.approx(higher)


def test_half_open_a_picture_is_both_experts() -> None:
    x, y, e = experts(0.0, 0.4, 0.4)
    torch.testing.assert_close(cosines(e), (cosines(x) + cosines(y)) / 2, atol=1e-4, rtol=0)


def test_every_parameter_has_a_finite_gradient_behind_a_closed_gate() -> None:
    first, second = Population(DIM), GatedAdapter(DIM)
    second(first(torch.randn(3, DIM))).sum().backward()
    for parameter in (*first.parameters(), *second.parameters()):
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
