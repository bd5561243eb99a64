"""The arithmetic of a private sum without its keys, for simulations: what devices do to numbers, nothing to hide them.

Clipping, rounding, weights, wrapping and the checks of the opened sum are the protocol's own functions, so that the sum
is the protocol's bit for bit where the rounding words are the same.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from mien.dp.mechanisms import RandomBytes
from mien.errors import ConfigError
from mien.secagg.config import RoundConfig
from mien.secagg.pipeline import pipeline, run
from mien.secagg.vector import Addends, OpenedSum, VectorLayout, check_norm, decode
from mien.specs import DpSpec


class EmulatedSum:
    """One sum under `config`, device by device; memory of one vector."""

    def __init__(self, config: RoundConfig) -> None:
        self.config = config
        self._layout = VectorLayout(config.size, config.num_metrics)
        self._words = np.zeros(self._layout.num_words, np.uint32)
        self._num_devices = 0

    def add(self, addends: Addends, dp: DpSpec, random: RandomBytes) -> None:
        """Add a device's addends, with its share of the noise that `dp` promises; raises as the pipeline's steps do."""
        self._words += run(pipeline(self.config, dp, self.config.sha256, random), addends, self._layout)
        self._num_devices += 1

    def merge(self, other: Self) -> None:
        """Add the sum over other devices of the same round; raises ConfigError for one under another configuration."""
        if other.config != self.config:
            raise ConfigError("two sums of different rounds cannot be added; make both from one round's plan")
        self._words += other._words
        self._num_devices += other._num_devices

    def open(self, noise_allowance: float = 0.0) -> OpenedSum:
        """Return the sum; raises CorruptDataError where the server would refuse it."""
        opened = decode(self._words, self._layout, self.config.numbers, self.config.sha256, self._num_devices)
        check_norm(opened, self.config.numbers, noise_allowance)
        return opened
