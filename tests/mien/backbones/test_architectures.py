"""Every backbone against its paper: parameter counts by hand formula and literature, shapes, stages, seeds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mien.backbones import BACKBONES, Backbone, build_backbone, layout_of, theta_of
from mien.errors import ConfigError
from mien.specs import FaceInputSpec
from tests.mien.backbones._models import pattern_crops

PHONES = [name for name, entry in BACKBONES.items() if entry.for_phones]
SMALL = ["mobilefacenet", "mobilefacenet_folded", "mobilefacenet192", "sface", "iresnet18", "resnet34"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def num_parameters(backbone: Backbone) -> int:
    return sum(p.numel() for p in backbone.parameters())


def network_input(backbone: Backbone, count: int) -> torch.Tensor:
    spec = backbone.input_spec
    return torch.from_numpy(spec.network_input(pattern_crops(count)[:, :, : spec.width]))


def iresnet_count(units: tuple[int, ...], dim: int) -> int:
    total = 3 * 64 * 9 + 2 * 64 + 64
    c_in = 64
    for c, n in zip((64, 128, 256, 512), units, strict=True):
        for i in range(n):
            total += 2 * c_in + c_in * c * 9 + 2 * c + c + c * c * 9 + 2 * c
            total += c_in * c + 2 * c if i == 0 else 0
            c_in = c
    return total + 2 * 512 + 512 * 49 * dim + dim + 2 * dim


@pytest.mark.parametrize(
    ("depth", "units", "published_millions"),
    [
        (18, (2, 2, 2, 2), 24.03),
        (34, (3, 4, 6, 3), 34.14),
        (50, (3, 4, 14, 3), 43.59),
        (100, (3, 13, 30, 3), 65.16),
    ],
)
def test_iresnet_has_the_published_number_of_parameters(
    depth: int, units: tuple[int, ...], published_millions: float
) -> None:
    count = num_parameters(build_backbone(f"iresnet{depth}"))
    assert count == iresnet_count(units, 512)
    assert round(count / 1e6, 2) == published_millions


def sphereface_count(blocks: tuple[int, ...], pixels: int, dim: int) -> int:
    total, c_in = 0, 3
    for c, n in zip((64, 128, 256, 512), blocks, strict=True):
        total += c_in * c * 9 + c + c + n * 2 * (c * c * 9 + c)
        c_in = c
    return total + 512 * pixels * dim + dim


@pytest.mark.parametrize(("depth", "blocks"), [(20, (1, 2, 4, 1)), (64, (3, 8, 16, 3))])
@pytest.mark.parametrize(("width", "pixels"), [(112, 7 * 7), (96, 7 * 6)])
def test_sphereface_counts_and_depth(depth: int, blocks: tuple[int, ...], width: int, pixels: int) -> None:
    backbone = build_backbone(f"sphereface{depth}", FaceInputSpec(width=width, dim=512))
    assert num_parameters(backbone) == sphereface_count(blocks, pixels, 512)
    assert sum(isinstance(m, torch.nn.Conv2d) for m in backbone.modules()) == depth
    assert not any(True for _ in backbone.buffers())


def test_resnet34_has_torchvisions_body_and_our_head() -> None:
    """torchvision's resnet34 has 21,797,672 parameters, of which its classifier 512 x 1000 + 1000."""
    body = 21_797_672 - 513_000
    for dim in (256, 512):
        head = 2 * 512 + 512 * 4 * 4 * dim + dim + 2 * dim
        assert num_parameters(build_backbone("resnet34", dim=dim)) == body + head


def bottlenecks_count(per_channel: int) -> int:
    """Parameters of MobileFaceNet's 15 bottlenecks, `per_channel` after each convolution besides its PReLU slopes."""
    total, c_in = 0, 64
    for t, c, n in ((2, 64, 5), (4, 128, 1), (2, 128, 6), (4, 128, 1), (2, 128, 2)):
        for _ in range(n):
            e = c_in * t
            total += c_in * e + 9 * e + e * c + 2 * e + per_channel * (e + e + c)
            c_in = c
    return total


@pytest.mark.parametrize(("name", "per_channel"), [("mobilefacenet", 2), ("mobilefacenet_folded", 1)])
def test_mobilefacenet_has_the_papers_table(name: str, per_channel: int) -> None:
    stem = 3 * 64 * 9 + 64 + per_channel * 64 + 64 * 9 + 64 + per_channel * 64
    head = 128 * 512 + 512 + per_channel * 512 + 512 * 49 + per_channel * 512 + 512 * 128 + per_channel * 128
    count = num_parameters(build_backbone(name))
    assert count == stem + bottlenecks_count(per_channel) + head
    assert count / 1e6 == pytest.approx(0.99, abs=0.015)  # the paper's 0.99 M


def test_mobilefacenet192_adds_two_pointwise_convolutions() -> None:
    stem = 3 * 64 * 9 + 2 * 64 + 64 * 9 + 2 * 64 + 64 * 64 + 64
    head = 128 * 512 + 2 * 512 + 512 * 49 + 512 + 512 * 512 + 512 + 512 * 192 + 192
    assert num_parameters(build_backbone("mobilefacenet192")) == stem + bottlenecks_count(1) + head


def test_sface_counts() -> None:
    total, c_in = 3 * 32 * 9 + 2 * 32, 32
    for c in (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024):
        total += c_in * 9 + 2 * c_in + c_in * c + 2 * c
        c_in = c
    assert num_parameters(build_backbone("sface")) == total + 1024 * 49 * 128 + 128


@pytest.mark.parametrize("name", [*SMALL, "sphereface20"])
def test_embeds_a_batch_and_each_image_alone(name: str) -> None:
    """Raw embeddings (N, dim): finite, different for different images, independent of the batch."""
    backbone = build_backbone(name)
    x = network_input(backbone, 2)
    with torch.no_grad():
        both, first = backbone(x), backbone(x[:1])
    assert both.shape == (2, backbone.input_spec.dim)
    assert both.dtype == torch.float32
    assert torch.isfinite(both).all()
    assert not torch.allclose(both[0], both[1], rtol=1e-2)
    torch.testing.assert_close(both[:1], first, rtol=1e-3, atol=1e-4 * float(both.abs().max()))


@pytest.mark.parametrize("name", ["sphereface20", "mobilefacenet", "iresnet18", "resnet34", "sface"])
def test_takes_the_narrow_crop(name: str) -> None:
    backbone = build_backbone(name, FaceInputSpec(width=96, dim=64))
    with torch.no_grad():
        assert backbone(network_input(backbone, 1)).shape == (1, 64)


@pytest.mark.parametrize("name", SMALL)
def test_trunk_and_tail_are_the_whole(name: str) -> None:
    backbone = build_backbone(name)
    x = network_input(backbone, 1)
    stages = len(backbone.stage_names)
    with torch.no_grad():
        whole = backbone(x)
        for split in (0, 1, stages // 2, stages - 1, stages):
            features = backbone.trunk(x, split)
            assert tuple(features.shape[1:]) == backbone.feature_shape(split)
            assert torch.equal(backbone.tail(features, split), whole)


@pytest.mark.parametrize("name", PHONES)
def test_phones_train_a_small_tail_with_a_frozen_fc(name: str) -> None:
    backbone = build_backbone(name)
    part = layout_of(backbone).part(backbone.default_trainable)
    assert part.size <= 1_000_000
    assert not [n for n in part.names if n.startswith("embedding.")]
    split = backbone.split_for(part.names)
    assert split == backbone.stage_names.index(part.names[0].split(".")[0])
    assert all(backbone.stage_names.index(n.split(".")[0]) >= split for n in part.names)
    assert not any(e.kind == "buffer" for e in layout_of(backbone).entries)


@pytest.mark.parametrize("name", PHONES)
def test_training_the_default_tail_leaves_the_trunk_alone(name: str) -> None:
    """A step on the default part changes the embedding and nothing before the split; every trained tensor moves."""
    backbone = build_backbone(name)
    part = layout_of(backbone).part(backbone.default_trainable)
    split = backbone.split_for(part.names)
    for tensor_name, p in backbone.named_parameters():
        p.requires_grad_(tensor_name in part.names)
    for entry, p in backbone.named_parameters():
        if entry.endswith(".gate_bias"):
            torch.nn.init.zeros_(p)  # a gate that is shut trains nothing behind it
    x = network_input(backbone, 2)
    features = backbone.trunk(x, split)
    assert not features.requires_grad
    before = {n: p.detach().clone() for n, p in backbone.named_parameters()}
    optimiser = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=1e-2)
    embedding = backbone.tail(features, split)
    # Not the mean of squares: some embeddings are of one length, whatever is trained.
    (embedding * torch.linspace(0, 1, embedding.shape[1])).square().mean().backward()
    optimiser.step()
    moved = {n for n, p in backbone.named_parameters() if not torch.equal(p, before[n])}
    assert moved == set(part.names)
    assert torch.equal(backbone.trunk(x, split), features)


def test_split_for_names_the_unknown_tensor() -> None:
    backbone = build_backbone("mobilefacenet_folded")
    assert backbone.split_for(["embedding.fc.weight", "block15.project.conv.bias"]) == 16
    assert backbone.split_for([]) == len(backbone.stage_names)
    with pytest.raises(ConfigError, match=r"block99\.conv\.weight"):
        backbone.split_for(["block99.conv.weight"])


def test_feature_shape_neither_changes_mode_nor_statistics() -> None:
    backbone = build_backbone("mobilefacenet").train()
    before = theta_of(backbone)
    assert backbone.feature_shape(2) == (64, 56, 56)
    assert backbone.training
    assert np.array_equal(theta_of(backbone), before)


def test_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = theta_of(build_backbone("mobilefacenet", seed=7))
    state = torch.get_rng_state()
    torch.rand(5)
    torch.manual_seed(99)
    outside = torch.get_rng_state()
    second = theta_of(build_backbone("mobilefacenet", seed=7))
    assert np.array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), outside), "the caller's generator was touched"
    assert not torch.equal(state, outside)
    assert not np.array_equal(first, theta_of(build_backbone("mobilefacenet", seed=8)))


def test_unknown_names_and_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mobilefacenet'"):
        build_backbone("mobilfacenet")
    with pytest.raises(ConfigError, match="known: mobilefacenet"):
        build_backbone("xyz")
    with pytest.raises(ConfigError, match="dim is 0"):
        build_backbone("sface", dim=0)
    with pytest.raises(ConfigError, match="192"):
        build_backbone("mobilefacenet192", dim=128)


def test_scaling_conventions() -> None:
    assert BACKBONES["sface"].input_spec == FaceInputSpec(mean=127.5, scale=128.0, dim=128)
    assert BACKBONES["mobilefacenet192"].input_spec == FaceInputSpec(mean=127.5, scale=128.0, dim=192)
    assert BACKBONES["iresnet50"].input_spec == FaceInputSpec(mean=127.5, scale=127.5, dim=512)
    with pytest.raises(TypeError):
        BACKBONES["mine"] = BACKBONES["sface"]  # type: ignore[index]
