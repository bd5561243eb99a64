"""Several weighted sums over one set of updates: how many may be shown, and how their weights are drawn.

Every weighting that the server sees is one linear equation on the devices' updates. With T generic weightings of n
devices, elimination leaves a sum over no fewer than n - T + 1 of them (`smallest_exposed_sum`); T = n gives each one
away. Short of that, of an average device's update they tell the share T / n, as one sum over n / T devices does.
docs/federated-validation.md has both arguments.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

from mien.errors import ConfigError
from mien.secagg.planner import smallest_sum
from mien.specs import TaskSpec

LOCAL_MODELS: Final = "local_models"
DEVICES_PER_WEIGHTING: Final = 2
"""With fewer, the best combination of the sums holds more of an average device's update than of all others'."""


def smallest_exposed_sum(num_devices: int, num_weightings: int) -> int:
    """Return the fewest devices over whom T generic weightings of n devices determine a sum: n - T + 1, at least 1."""
    return max(1, num_devices - num_weightings + 1)


def check_weightings(task: TaskSpec, num_weightings: int) -> None:
    """Raise ConfigError where a round's sums would say more than one sum over `privacy.min_cohort` devices does.

    The most is n - n_min weightings, n being the fewest devices of a sum: what is left by elimination is then a sum
    over n_min + 1 or more, so that a device that tells the server its own update leaves n_min of them. Nor are there
    more than n / `DEVICES_PER_WEIGHTING`, whatever n_min is: many sums nearly tell what they do not determine. A task
    that opted in with `privacy.reveals = ["local_models"]` is held to neither.
    """
    if LOCAL_MODELS in task.privacy.reveals:
        return
    num_devices, floor = smallest_sum(task), task.privacy.min_cohort
    most = min(num_devices - floor, num_devices // DEVICES_PER_WEIGHTING)
    if num_weightings > most:
        enough = max(floor + num_weightings, DEVICES_PER_WEIGHTING * num_weightings)
        raise ConfigError(
            f"{num_weightings} weightings of one round's updates leave a sum over "
            f"{smallest_exposed_sum(num_devices, num_weightings)} of {num_devices} devices, one of which may tell its "
            f"own, and tell {min(num_weightings / num_devices, 1.0):.0%} of an average device's update; "
            f"privacy.min_cohort {floor}, and {DEVICES_PER_WEIGHTING} devices for each weighting, permits "
            f"{max(most, 0)}. Raise cohort.min_reports to {enough} or more, lower options.candidates, or agree to show "
            'local models with privacy.reveals = ["local_models"]'
        )


def simplex_draw(seed: bytes, round_index: int, candidate: int, device: str) -> float:
    """Return a device's weight in a candidate, before the weights of whoever is in the sum are divided by their sum.

    The draws are exponential, so that those of any set of devices, divided by their sum, are uniform on the simplex:
    who drops out changes nothing. Whoever holds the seed can repeat them, and nobody else foresees them.
    """
    text = f"weighting/{round_index}/{candidate}/{device}".encode()
    word = int.from_bytes(hashlib.sha256(seed + text).digest()[:8], "big")
    return -math.log((word + 1) / (2**64 + 1))
