"""A worker of the cluster engine, and what travels between it and the driver.

Ray keeps objects in shared memory and, where an operator lets it, on disk. Faces, class embeddings and updates must be
in neither in clear: all that says something of a phone is sealed (AES-256-GCM) under a key of the run, which is only
ever in the memory of processes. The model, the task and public faces are not secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import ray
from numpy.typing import NDArray

from coordinator.store.sealing import MasterKey
from mien.contribution import Arrays
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, ServerState
from mien.specs import TaskSpec
from simulation.engines.base import Cohort, Engine, PublicFaces, RoundWork
from simulation.engines.choice import Choice
from simulation.engines.sums import Sums

MakeEngine = Callable[[str], Engine | Choice]
"""Makes what a worker runs its shard with, on device "cpu" or "cuda"; with the reason, where there was a choice."""
OpenCohort = Callable[[], Cohort]
"""Opens the phones' faces where they lie, on any node."""
_PURPOSE: Final = "cluster"


@dataclass(frozen=True)
class Common:
    """The data that all devices of a round share: in the object store once a round, in clear but for `sealed_state`.

    `sealed_state` holds the server's arrays, and what devices revealed. `token` is another one each time.
    """

    token: bytes
    task: TaskSpec
    part: ParameterPart
    dim: int
    number: int
    sums: Sums
    theta: Vector = field(repr=False)
    sealed_state: bytes = field(repr=False)


@dataclass(frozen=True)
class Statics:
    """The data that stays the same from round to round: public faces and other models, both public."""

    public: PublicFaces | None
    models: Mapping[str, Vector] = field(repr=False)


@dataclass(frozen=True)
class Phones:
    """One shard's devices with what they keep; sealed on its way.

    `crops` and `labels` are those of a cohort that is in the driver's memory; empty where workers open it themselves.
    """

    devices: tuple[str, ...]
    private: Mapping[str, Arrays] = field(repr=False)
    crops: Mapping[str, Crops] = field(repr=False)
    labels: Mapping[str, NDArray[np.int64]] = field(repr=False)


class Seal:
    """Seals and opens what says something of phones, under the key of a run."""

    def __init__(self, key: bytes) -> None:
        self._sealer = MasterKey(key).sealer(_PURPOSE)

    def close(self, content: Any, what: str) -> bytes:
        """Return the content in sealed bytes."""
        return self._sealer.seal(_dumps(content), place=what.encode())

    def open(self, sealed: bytes, what: str) -> Any:
        """Return the content; raises CorruptDataError for bytes that nobody with the key has sealed as `what`."""
        return ray.cloudpickle.loads(self._sealer.open(sealed, place=what.encode()))


def _dumps(content: Any) -> bytes:
    data: bytes = ray.cloudpickle.dumps(content)  # type: ignore[no-untyped-call]
    return data


class Worker:
    """Runs shards one after another with an engine of its own; an actor of Ray's."""

    def __init__(self, key: bytes, make_engine: MakeEngine, open_cohort: OpenCohort | None) -> None:
        self._seal = Seal(key)
        self._make_engine, self._open_cohort = make_engine, open_cohort
        self._made: tuple[Engine, Cohort | None] | None = None
        self._state: tuple[bytes, ServerState] | None = None

    def ready(self) -> str:
        """Return what this worker runs its shards with, in words, once it can work.

        Raises why it cannot: an actor whose constructor fails would be lost without a word.
        """
        made = self._make_engine("cuda" if ray.get_gpu_ids() else "cpu")
        engine, words = (made.engine, str(made)) if isinstance(made, Choice) else (made, f"engine {made.name}")
        self._made = (engine, self._open_cohort() if self._open_cohort else None)
        return words

    def train(self, common: Common, statics: Statics, sealed_phones: bytes) -> bytes:
        """Return the sealed result of one shard; the worker must be ready."""
        assert self._made is not None
        engine, opened = self._made
        phones: Phones = self._seal.open(sealed_phones, "phones")
        cohort = opened or Cohort(phones.crops, labels=phones.labels, public=statics.public, models=statics.models)
        work = RoundWork(
            common.task,
            common.part,
            common.dim,
            self._server_state(common),
            replace(cohort, private=phones.private),
            phones.devices,
            common.number,
            common.sums,
        )
        result = replace(engine.train(work), workers=(engine.name,))
        return self._seal.close(result, "result")

    def _server_state(self, common: Common) -> ServerState:
        """Return the round's state, the very same for all shards of a round: engines keep its model loaded."""
        if self._state is None or self._state[0] != common.token:
            state: ServerState = self._seal.open(common.sealed_state, "state")
            self._state = (common.token, replace(state, theta=common.theta))
        return self._state[1]
