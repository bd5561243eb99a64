"""Whether training should go on: looked at between its steps, so that no phone trains for a round that is over."""

from __future__ import annotations

from typing import Final

from device_sdk.client import CoordinatorClient, RoundRef, Stage
from device_sdk.clock import Clock
from device_sdk.conditions import Conditions
from mien.errors import LateError, NotFoundError, UnavailableError

LOOK_EVERY_S: Final = 15.0
_STILL_TIME: Final = (Stage.SELECTING, Stage.TRAINING, Stage.OTHER)


class TrainingWatch:
    """Tells when training should stop, and why: call it as often as you like, it looks every quarter of a minute."""

    def __init__(self, client: CoordinatorClient, ref: RoundRef, conditions: Conditions, clock: Clock) -> None:
        self._client, self._ref, self._conditions, self._clock = client, ref, conditions, clock
        self._next_look_s = clock.monotonic_s() + LOOK_EVERY_S
        self.reason = ""

    def __call__(self) -> bool:
        """Return whether to stop. A coordinator that does not answer is no reason: it may be back by the end."""
        if not self.reason and self._clock.monotonic_s() >= self._next_look_s:
            self.reason = self._look()
            self._next_look_s = self._clock.monotonic_s() + LOOK_EVERY_S
        return bool(self.reason)

    def _look(self) -> str:
        if unmet := self._conditions.unmet():
            return f"the phone is no longer {' and '.join(unmet)}; it leaves the round"
        try:
            event = self._client.glance(self._ref)
        except UnavailableError:
            return ""
        except (LateError, NotFoundError) as error:
            return error.message
        if event.stage in _STILL_TIME:
            return ""
        return f"the round went on without this phone{f' ({event.reason})' if event.reason else ''}; nothing is lost"
