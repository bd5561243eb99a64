"""The small network: its parameters counted by hand, and what of it stays as it is."""

from __future__ import annotations

from mien.backbones import layout_of, theta_of
from mien.backbones.small import build_small_network
from mien.specs import FaceInputSpec


def test_the_network_is_that_of_the_tables() -> None:
    """Weights, biases and slopes: 32 (27 + 2), 64 (288 + 2), 128 (576 + 2), 128 (1152 + 2), 128 (512 + 1)."""
    network = build_small_network(FaceInputSpec(dim=128))
    assert layout_of(network).size == 928 + 18_560 + 73_984 + 147_712 + 65_664
    assert network.feature_shape(network.split_for(["conv1.conv.weight"])) == (3, 28, 28)
    assert network.split_for(layout_of(network).part(network.default_trainable).names) == 1
    assert layout_of(network).part(network.default_trainable).size == theta_of(network).size
