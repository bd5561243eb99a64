"""The adapter behind a recogniser: starts as the identity, is the only part that is trained, and is counted by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from mien.backbones import build_backbone, layout_of, load_theta, theta_of
from mien.backbones.importers import ImportedModel, with_adapter
from mien.errors import ConfigError
from mien.specs import FaceInputSpec, ModelSpec
from tests.mien.backbones._models import pattern_crops

pytestmark = pytest.mark.numerics


def imported(name: str) -> ImportedModel:
    """Return a backbone with random weights as an imported model."""
    backbone = build_backbone(name, seed=3)
    layout = layout_of(backbone)
    spec = ModelSpec(name, layout.sha256, backbone.input_spec, "test", "none", backbone.default_trainable)
    return ImportedModel(spec, layout, theta_of(backbone))


@pytest.mark.parametrize(("name", "dim"), [("sface", 128), ("mobilefacenet192", 192)])
def test_a_model_with_an_adapter_embeds_as_before_and_trains_only_that(name: str, dim: int) -> None:
    before = imported(name)
    after = with_adapter(before)
    assert after.spec.backbone == f"{name}_adapter"
    assert after.layout.size == before.layout.size + dim * dim + dim
    assert after.layout.part(after.spec.trainable).size == dim * dim + dim
    plain, adapted = build_backbone(name), build_backbone(after.spec.backbone)
    load_theta(plain, before.layout, before.theta)
    load_theta(adapted, after.layout, after.theta)
    crops = pattern_crops(2)
    x_BCHW = torch.from_numpy(plain.input_spec.network_input(crops))
    with torch.no_grad():
        np.testing.assert_allclose(adapted(x_BCHW).numpy(), plain(x_BCHW).numpy(), rtol=1e-5, atol=1e-5)


def test_the_trunk_of_an_adapter_is_the_whole_network() -> None:
    backbone = build_backbone("sface_adapter", FaceInputSpec())
    split = backbone.split_for(["adapter.bias"])
    assert backbone.stage_names[split:] == ("adapter",)
    assert backbone.feature_shape(split) == (128,)


def test_a_backbone_without_such_a_form_is_refused() -> None:
    model = imported("mobilefacenet_folded")
    with pytest.raises(ConfigError, match="has no form with an adapter; those that have: mobilefacenet192, sface"):
        with_adapter(model)
    again = with_adapter(imported("mobilefacenet192"))
    with pytest.raises(ConfigError, match="no form with an adapter"):
        with_adapter(dataclasses.replace(again))
