"""Which batches a round has: they come to an end, or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.runtimes.schedule import batches
from mien.errors import ConfigError
from mien.specs import LocalSpec


@pytest.mark.parametrize(("num_crops", "batch_size"), [(1, 0), (1, 4), (5, 1)])
def test_steps_that_no_epoch_gives_are_refused(num_crops: int, batch_size: int) -> None:
    local = LocalSpec(steps=7, batch_size=batch_size, batch_norm="train")
    with pytest.raises(ConfigError, match="no statistics"):
        list(batches(local, num_crops, np.random.default_rng(0)))
