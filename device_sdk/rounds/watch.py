"""Watch on training, between its steps, so that no phone trains for a round that is over.

Training pauses while the phone may not work, as long as the round waits for it. Time that it paused is not training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from device_sdk.rounds.conditions import Conditions
from device_sdk.server.client import CoordinatorClient
from mien.errors import ConfigError, LateError, MienError, NotFoundError, UnavailableError
from mien.format import spell_duration
from mien.protocol.rounds import RoundRef, Stage
from mien.shell.clock import Clock

LOOK_EVERY_S: Final = 15.0
UNTOLD_PAUSE_S: Final = 300.0
"""Longest pause of training for a round whose deadline nobody could tell."""
_STILL_TIME: Final = (Stage.SELECTING, Stage.TRAINING, None)
TellPause = Callable[[str, str], None]


class TrainingWatch:
    """Watch that says when training should stop, and why: call it often, it looks every quarter of a minute.

    `max_training_s` is how long this phone trains in one round. `tell` hears of pauses: a kind of event, a sentence.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        ref: RoundRef,
        conditions: Conditions,
        clock: Clock,
        *,
        max_training_s: float | None = None,
        tell: TellPause = lambda _kind, _text: None,
    ) -> None:
        self._client, self._ref, self._conditions, self._clock = client, ref, conditions, clock
        self._max_s, self._tell = max_training_s, tell
        self._began_s = clock.monotonic_s()
        self._next_look_s = self._began_s + LOOK_EVERY_S
        self._deadline_s: float | None = None
        self._fastest_s, self._last_step_s = math.inf, math.nan
        self.error: MienError | None = None

    @property
    def reason(self) -> str:
        """Reason to stop training; "" while there is none."""
        return "" if self.error is None else self.error.message

    @property
    def trained_s(self) -> float:
        """Seconds that this phone has trained in the round, without its pauses."""
        return self._clock.monotonic_s() - self._began_s

    def __call__(self, steps_left: int = 0) -> bool:
        """Return whether to stop, asked before a step; `steps_left` are those to come as far as is known.

        A coordinator that does not answer is no reason: it may be back by the end.
        """
        if self.error is None:
            self.error = self._over_budget(steps_left)
        if self.error is None and self._clock.monotonic_s() >= self._next_look_s:
            self.error = self._look()
            self._next_look_s = self._clock.monotonic_s() + LOOK_EVERY_S
        return self.error is not None

    def _over_budget(self, steps_left: int) -> MienError | None:
        """Return an error once the budget is used up, or half of it is and the rest at its fastest will not do."""
        if self._max_s is None:
            return None
        spent_s = self.trained_s
        if spent_s > self._last_step_s:
            self._fastest_s = min(self._fastest_s, spent_s - self._last_step_s)
        self._last_step_s = spent_s
        rest_s = steps_left * self._fastest_s if math.isfinite(self._fastest_s) else 0.0
        if spent_s < self._max_s and (spent_s < self._max_s / 2 or spent_s + rest_s <= self._max_s):
            return None
        return ConfigError(
            f"training for this round takes longer than participation.max_training_s ({spell_duration(self._max_s)}) "
            f"allows: {spell_duration(spent_s)} spent, {steps_left} steps left; the phone leaves the round, and "
            "nothing is lost; raise the limit, or give more threads"
        )

    def _look(self) -> MienError | None:
        if unmet := self._conditions.unmet():
            return self._pause(unmet)
        return self._round_over()

    def _pause(self, unmet: tuple[str, ...]) -> MienError | None:
        """Wait for the conditions to come back, as long as the round waits; returns why to leave it."""
        clock, missing = self._clock, " and ".join(unmet)
        paused_s = clock.monotonic_s()
        self._tell("paused", f"The phone is no longer {missing}: training pauses, and the round's deadline goes on.")
        while self._conditions.unmet():
            if (over := self._round_over()) is not None:
                return LateError(f"the phone is no longer {missing}, and {over.message}")
            until_s = paused_s + UNTOLD_PAUSE_S if self._deadline_s is None else self._deadline_s
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0:
                return LateError(
                    f"the phone is no longer {missing}, and the round waits no longer; it leaves the round"
                )
            clock.sleep(min(LOOK_EVERY_S, left_s))
        pause_s = clock.monotonic_s() - paused_s
        self._began_s += pause_s
        self._tell("continued", f"Training goes on after a pause of {spell_duration(pause_s)}.")
        return self._round_over()

    def _round_over(self) -> MienError | None:
        """Return the reason why the round is over for this phone; None while there is time, or nobody can tell."""
        try:
            event = self._client.glance(self._ref)
        except UnavailableError:
            return None
        except (LateError, NotFoundError) as error:
            return error
        if event.stage is Stage.TRAINING and event.remaining_s > 0:
            self._deadline_s = self._clock.monotonic_s() + event.remaining_s
        if event.stage in _STILL_TIME:
            return None
        why = f" ({event.reason})" if event.reason else ""
        return LateError(f"the round went on without this phone{why}; nothing is lost")
