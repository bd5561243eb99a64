"""The shape that every recogniser has here: an ordered sequence of named stages, splittable between any two.

Suffixes of tensors: B batch, C channels, H height, W width, D embedding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from mien.errors import ConfigError
from mien.specs import FaceInputSpec


class Backbone(nn.Module):
    """A face recogniser: network input (B, 3, H, W) float32 -> embedding (B, dim), not normalised.

    The input is what `input_spec.network_input` makes of aligned crops; scaling is never part of the graph. Tensor
    names start with their stage's name, so `default_trainable` and a task's `trainable` patterns read
    `("block12.*", "embedding.*")`.

    Training a tail: with `split = backbone.split_for(names)`, `backbone.trunk(x, split)` are features that do not
    change while only `names` are trained, and `backbone.tail(features, split)` is the rest. That holds where the trunk
    has no BatchNorm in training mode, whose output depends on the batch: fold it (`fold_batch_norm`) or call `eval()`.
    """

    def __init__(
        self,
        name: str,
        input_spec: FaceInputSpec,
        stages: Mapping[str, nn.Module],
        default_trainable: tuple[str, ...] = ("*",),
    ) -> None:
        super().__init__()
        self.name = name
        self.input_spec = input_spec
        self.default_trainable = default_trainable
        for stage_name, stage in stages.items():
            self.add_module(stage_name, stage)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages in the order in which an image passes them."""
        return tuple(self._modules)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the embedding (B, dim), not normalised."""
        return self.forward_stages(x_BCHW)

    def forward_stages(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the output of stages `start` to before `stop` for `x`, the output of stage `start - 1`."""
        for stage in list(self.children())[start:stop]:
            x = stage(x)
        return x

    def split_for(self, trainable: Iterable[str]) -> int:
        """Return the index of the first stage that holds one of these tensors: everything before it stays constant.

        Raises ConfigError for a name that the model does not have.
        """
        first = len(self.stage_names)
        known = {name for name, _ in self.named_parameters()} | {name for name, _ in self.named_buffers()}
        for name in trainable:
            if name not in known:
                raise ConfigError(f"backbone {self.name} has no tensor {name!r}; use names of its layout")
            first = min(first, self.stage_names.index(name.split(".", 1)[0]))
        return first

    def trunk(self, x_BCHW: Tensor, split: int) -> Tensor:
        """Return the features that enter stage `split`, for caching; see the class for when they are constant."""
        return self.forward_stages(x_BCHW, 0, split)

    def tail(self, features: Tensor, split: int) -> Tensor:
        """Return the embedding (B, dim) of features that `trunk` made with the same `split`."""
        return self.forward_stages(features, split)

    def feature_shape(self, split: int) -> tuple[int, ...]:
        """Return the shape of one image's features at `split`, without the batch axis (found by a dry run)."""
        was_training = self.training
        parameter = next(self.parameters())
        blank = parameter.new_zeros(1, 3, self.input_spec.height, self.input_spec.width)
        self.eval()  # BatchNorm must neither learn from the blank image nor refuse a batch of one
        with torch.no_grad():
            shape = tuple(self.trunk(blank, split).shape[1:])
        self.train(was_training)
        return shape


@contextlib.contextmanager
def initialised_from(seed: int) -> Iterator[None]:
    """Make torch's CPU generator start from `seed` inside the block and leave the caller's generator untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
