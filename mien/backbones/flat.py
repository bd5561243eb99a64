"""Between a torch module and its flat vector: layout, read, write; and folding BatchNorm away."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import nn

from mien.backbones._base import Backbone
from mien.backbones._units import ConvUnit, EmbeddingHead
from mien.errors import ConfigError, LayoutMismatchError
from mien.layout import ParameterEntry, ParameterLayout, Vector


def layout_of(module: nn.Module) -> ParameterLayout:
    """Return the layout of a module: its parameters in `named_parameters` order, then its float buffers.

    Counters (`num_batches_tracked`) are left out: they are no addends.
    """
    parameters = [ParameterEntry(name, tuple(p.shape)) for name, p in module.named_parameters()]
    buffers = [
        ParameterEntry(name, tuple(b.shape), "buffer") for name, b in module.named_buffers() if b.is_floating_point()
    ]
    return ParameterLayout(tuple(parameters + buffers))


def theta_of(module: nn.Module) -> Vector:
    """Return a copy of all of a module's numbers as one float32 vector, in the order of `layout_of`."""
    tensors = _tensors(module)
    return layout_of(module).flatten({name: t.detach().cpu().numpy() for name, t in tensors.items()})


@torch.no_grad()
def load_theta(module: nn.Module, layout: ParameterLayout, theta: Vector) -> None:
    """Overwrite a module's parameters and buffers with the vector `theta` of `layout`.

    Raises LayoutMismatchError where layout, vector and module do not belong together, NonFiniteError for NaN.
    """
    if layout.sha256 != layout_of(module).sha256:
        raise LayoutMismatchError(
            f"parameters are for layout {layout.sha256[:12]}, this network has {layout_of(module).sha256[:12]}; "
            "build the backbone that the model's manifest names"
        )
    load_tensors(_tensors(module), layout, layout.check(theta), layout.offsets)


@torch.no_grad()
def load_tensors(
    tensors: Mapping[str, torch.Tensor], layout: ParameterLayout, theta: Vector, names: Iterable[str]
) -> None:
    """Overwrite some of a module's tensors, given by name, with their elements of `theta`."""
    for name in names:
        start, tensor = layout.offsets[name], tensors[name]
        values = theta[start : start + tensor.numel()].reshape(tensor.shape)
        if tensor.device.type == "cpu":
            np.copyto(tensor.detach().numpy(), values)
        else:
            tensor.copy_(torch.from_numpy(values.copy()))  # a copy: torch warns of read-only memory


def fold_batch_norm(backbone: Backbone) -> Backbone:
    """Return a copy without BatchNorm that embeds as the original does in eval mode; its name ends in `_folded`.

    Folded nets train on one person's images, whose batch statistics would be useless, and have no buffers. Raises
    ConfigError for a net with BatchNorm before a padded convolution (iresnet), which no convolution can absorb.
    """
    folded = copy.deepcopy(backbone).eval()
    for module in list(folded.modules()):
        if isinstance(module, ConvUnit | EmbeddingHead):
            module.fold()
    left = [name for name, module in folded.named_modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    if left:
        raise ConfigError(
            f"backbone {backbone.name} cannot be folded: {left[0]} stands before a padded convolution; "
            "train it with BatchNorm in a silo or simulation task, or choose mobilefacenet or sface"
        )
    if next(backbone.buffers(), None) is not None:
        folded.name = f"{backbone.name}_folded"
    return folded


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    named = dict(module.named_parameters())
    return named | {name: b for name, b in module.named_buffers() if b.is_floating_point()}
