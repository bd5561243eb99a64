"""Between module and vector: order, what is left out, round trips, refusals; and folding BatchNorm away."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mien.backbones import Backbone, build_backbone, fold_batch_norm, layout_of, load_theta, theta_of
from mien.errors import ConfigError, LayoutMismatchError, NonFiniteError
from mien.layout import ParameterEntry
from tests.mien.backbones._models import pattern_crops

# Vectors of other builds stay readable only while these stand: a change here is a new model format.
PINNED = {
    "sface": "020da20cc12e9c583b51b8bdd432775251f0d65e38d6ca63f8cad08cb53d7d9f",
    "mobilefacenet192": "7d3cd8b35b07b979867aacb1baf2c039a68df4ecafaf24944aa6523710748a1c",
}


@pytest.mark.parametrize("name", PINNED)
def test_layout_hashes_are_stable(name: str) -> None:
    assert layout_of(build_backbone(name)).sha256 == PINNED[name]


def test_layout_is_parameters_then_statistics_without_counters() -> None:
    module = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.BatchNorm2d(2), nn.Linear(2, 1))
    assert layout_of(module).entries == (
        ParameterEntry("0.weight", (2, 3, 1, 1)),
        ParameterEntry("1.weight", (2,)),
        ParameterEntry("1.bias", (2,)),
        ParameterEntry("2.weight", (1, 2)),
        ParameterEntry("2.bias", (1,)),
        ParameterEntry("1.running_mean", (2,), "buffer"),
        ParameterEntry("1.running_var", (2,), "buffer"),
    )
    assert layout_of(module).size == 6 + 2 + 2 + 2 + 1 + 2 + 2


def test_theta_round_trips_through_another_network() -> None:
    source, target = build_backbone("mobilefacenet", seed=1), build_backbone("mobilefacenet", seed=2)
    with torch.no_grad():
        for buffer in source.buffers():
            if buffer.is_floating_point():
                buffer.add_(0.25)
    theta = theta_of(source)
    assert theta.dtype == np.float32
    load_theta(target, layout_of(source), theta)
    assert np.array_equal(theta_of(target), theta)
    assert float(target.get_buffer("stem.norm.running_mean")[0]) == 0.25
    x = torch.from_numpy(source.input_spec.network_input(pattern_crops(1)))
    with torch.no_grad():
        assert torch.equal(source(x), target(x))


def test_theta_is_a_copy_both_ways() -> None:
    backbone = build_backbone("mobilefacenet_folded")
    theta = theta_of(backbone)
    first = float(theta[0])
    theta[0] = 42.0
    assert float(theta_of(backbone)[0]) == first
    load_theta(backbone, layout_of(backbone), theta)
    theta[0] = 43.0
    assert float(theta_of(backbone)[0]) == 42.0


def test_read_only_vectors_load() -> None:
    backbone = build_backbone("mobilefacenet_folded")
    theta = np.frombuffer(theta_of(backbone).tobytes(), np.float32)
    load_theta(backbone, layout_of(backbone), theta)


def test_parameters_of_another_network_are_refused() -> None:
    folded, other = build_backbone("mobilefacenet_folded"), build_backbone("mobilefacenet_folded", dim=64)
    with pytest.raises(LayoutMismatchError, match="build the backbone that the model's manifest names"):
        load_theta(folded, layout_of(other), theta_of(other))
    with pytest.raises(LayoutMismatchError):
        load_theta(folded, layout_of(folded), theta_of(other))
    theta = theta_of(folded)
    broken = theta.copy()
    broken[100] = np.nan
    with pytest.raises(NonFiniteError):
        load_theta(folded, layout_of(folded), broken)
    assert np.array_equal(theta_of(folded), theta)


def with_lived_statistics(backbone: Backbone) -> Backbone:
    """Return the backbone with BatchNorms as after training: no mean 0, no variance 1, no unit scale."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                for tensor, low, high in (
                    (module.weight, 0.5, 1.5),
                    (module.bias, -0.5, 0.5),
                    (module.running_mean, -0.3, 0.3),
                    (module.running_var, 0.5, 2.0),
                ):
                    assert tensor is not None
                    tensor.uniform_(low, high, generator=generator)
    return backbone


@pytest.mark.parametrize("name", ["mobilefacenet", "resnet34"])
def test_folded_networks_embed_the_same(name: str) -> None:
    """Equal in float64 to rounding: folding is algebra, no approximation."""
    backbone = with_lived_statistics(build_backbone(name)).double()
    before = {n: t.clone() for n, t in backbone.state_dict().items()}
    folded = fold_batch_norm(backbone)
    x = torch.from_numpy(backbone.input_spec.network_input(pattern_crops(2))).double()
    with torch.no_grad():
        expected = backbone(x)
        torch.testing.assert_close(folded(x), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    assert all(torch.equal(t, before[n]) for n, t in backbone.state_dict().items()), "the original was changed"


@pytest.mark.parametrize("name", ["mobilefacenet", "resnet34"])
def test_folded_networks_are_what_the_registry_builds(name: str) -> None:
    folded = fold_batch_norm(build_backbone(name))
    built = build_backbone(folded.name)
    assert folded.name == built.name == f"{name}_folded"
    assert layout_of(folded) == layout_of(built)
    assert folded.default_trainable == built.default_trainable
    load_theta(built, layout_of(folded), theta_of(folded))


def test_folding_a_network_without_batch_norm_is_a_copy() -> None:
    sface = build_backbone("sface")
    folded = fold_batch_norm(sface)
    assert folded is not sface
    assert folded.name == "sface"
    assert np.array_equal(theta_of(folded), theta_of(sface))


def test_networks_that_cannot_be_folded_say_why() -> None:
    with pytest.raises(ConfigError, match="iresnet18 cannot be folded"):
        fold_batch_norm(build_backbone("iresnet18"))
