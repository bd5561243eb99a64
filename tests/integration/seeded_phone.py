"""A phone as a process of its own whose chance is the simulator's: `python -m ....seeded_phone HOME ROUNDS PERSON ...`.

What rounds an update on a real phone is secret, so that the coordinator cannot take it out again. Here it comes through
the seams where all chance comes in, `Participant.random_bytes` and `Participant.local_seed`; everything else is as in
`mien-device participate`. The arguments after HOME are pairs: how many rounds to take part in, and whose faces train
("" for everybody's).
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from pathlib import Path
from typing import Final

from device_sdk.device import Device
from device_sdk.rounds.conditions import StatedConditions
from device_sdk.rounds.disclosure import Agreement
from device_sdk.rounds.participate import Counted, Participant, take_part
from device_sdk.runtimes import load_runtime
from mien.protocol.rounds import RoundRef
from mien.secagg.masks import WordStream
from mien.specs import TaskSpec
from simulation.engines.engine import device_seed

DRAW_OF_ROUNDING: Final = 8
"""An attempt draws two keys, a KEM's seed, a nonce, b, two polynomials, its rounding's seed (`mien.secagg.device`)."""
SEED_BYTES: Final = 32


class SimulatedChance:
    """The operating system's chance for everything secret, the simulator's for local training and for rounding."""

    def __init__(self) -> None:
        self._draws = 0
        self._rounding = b""

    def local_seed(self, device_id: str, task: TaskSpec, ref: RoundRef) -> int:
        """Return the simulator's seed of a local round, and begin to count the attempt's draws."""
        # As `simulation.engines.sums.RingSum` has it.
        name = f"{task.name}/{task.seed}/{ref.round}/{device_id}"
        stream = WordStream(hashlib.sha256(name.encode()).digest())
        self._draws, self._rounding = 0, stream.take(SEED_BYTES // 4).tobytes()
        return device_seed(task, device_id, ref.round)

    def random_bytes(self, size: int) -> bytes:
        """Return fresh bytes, the simulator's where they seed the rounding."""
        self._draws += 1
        if self._draws != DRAW_OF_ROUNDING:
            return secrets.token_bytes(size)
        assert size == SEED_BYTES
        return self._rounding


def main(home: Path, plan: list[tuple[int, str]]) -> None:
    """Take part as the plan says; fails unless every round counts."""
    for rounds, person in plan:
        chance = SimulatedChance()
        with Device.open(home, options={"keystore": "file"}) as device, device.connect() as client:
            participant = Participant(
                client,
                device.gallery,
                device.models,
                Agreement(min_cohort=3, person=person, max_sums_per_model=9),  # several tasks begin with one model
                StatedConditions(),
                lambda model: load_runtime(model.spec, model.layout),
                device.attempts,
                device.clock,
                random_bytes=chance.random_bytes,
                local_seed=chance.local_seed,
            )
            outcomes = list(take_part(lambda: participant, device.clock, rounds=rounds, idle_s=150.0))  # noqa: B023
        assert [type(outcome) for outcome in outcomes] == [Counted] * rounds, outcomes


if __name__ == "__main__":
    words = sys.argv[2:]
    main(Path(sys.argv[1]), [(int(count), person) for count, person in zip(words[::2], words[1::2], strict=True)])
