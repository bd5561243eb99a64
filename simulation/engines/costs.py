"""Cost of training a tail for one image, so that engines can be chosen and stacks cut to memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from device_sdk.runtimes.torch_runtime import Trunk


@dataclass(frozen=True)
class TailCost:
    """Numbers that one image's pass through a tail leaves in memory, and multiplications of its convolutions."""

    activations: int
    convolution_macs: int

    @property
    def training_bytes(self) -> int:
        """Memory of one image during a training step: every number as it is, and its gradient."""
        return 2 * 4 * self.activations


def room_bytes(device: str, on_cpu: int) -> int:
    """Return what clients that are trained together may take: `on_cpu`, or on a GPU half of what is free there now."""
    return on_cpu if device == "cpu" else int(torch.cuda.mem_get_info()[0]) // 2


@torch.no_grad()
def tail_cost(trunk: Trunk) -> TailCost:
    """Return the cost of a trunk's tail, found by passing one blank image through it."""
    shape = trunk.backbone.feature_shape(trunk.split)
    counted = {"activations": math.prod(shape), "macs": 0}

    def count(module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> None:
        counted["activations"] += output.numel()
        if isinstance(module, nn.Conv2d):
            counted["macs"] += output.numel() * module.weight[0].numel()

    leaves = [module for module in trunk.backbone.modules() if not next(module.children(), None)]
    hooks = [module.register_forward_hook(count) for module in leaves]
    try:
        trunk.tail(torch.zeros(1, *shape, device=trunk.device))
    finally:
        for hook in hooks:
            hook.remove()
    return TailCost(counted["activations"], counted["macs"])
