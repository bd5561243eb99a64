"""A cohort on several GPUs, cores or machines: a worker of Ray's for each, and only sums and private state travel.

Raises MissingDependencyError on import where Ray is not installed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from mien.errors import MienError, MissingDependencyError, UnavailableError
from mien.methods.base import Runtime
from mien.shell.keys import secret_bytes
from simulation.engines.base import RoundResult, RoundWork, combined
from simulation.engines.placement import PER_SHARD, Shard, shards_of
from simulation.engines.population import num_images

# Before Ray is imported: it says nothing to anybody, and nothing of GPUs that a worker does not have.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray
    from ray._private import ray_constants
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError
except ImportError as error:
    raise MissingDependencyError(
        "the cluster engine needs Ray: pip install '.[cluster]' in Mien's folder, or use another --engine"
    ) from error

from simulation.engines.cluster_worker import (
    Common,
    MakeEngine,
    OpenCohort,
    Phones,
    Seal,
    Statics,
    Worker,
)
from simulation.engines.crash_report import does_not_start, raised_at_start

LOOPBACK: Final = "127.0.0.1"
MOST_LOSSES: Final = 3
"""Workers that one shard may lose; then it is the shard that ends them."""
START_TIMEOUT_S: Final = 180.0


@contextlib.contextmanager
def own_ray(num_cpus: int | None = None, num_gpus: int | None = None) -> Iterator[None]:
    """Run Ray on this machine alone while the block runs, by default on all cores and GPUs.

    It listens on the loopback address only, without dashboard and usage reports; it never spills objects to disk, and
    its files are in a temporary folder that is removed.
    """
    folder = tempfile.mkdtemp(prefix="mien-ray-")
    try:
        with loopback_only(), _quiet_stdout():
            ray.init(
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address=LOOPBACK,
                _temp_dir=folder,
                _system_config={"automatic_object_spilling_enabled": False},
            )
            yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def joined_ray(address: str) -> Iterator[None]:
    """Use a running cluster of Ray's while the block runs; raises UnavailableError where none answers."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UnavailableError(f"no Ray cluster answers at {address}; start one with `ray start --head`") from error
    try:
        with _quiet_stdout():
            yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Keep Ray from taking a loopback address for the machine's own while the block runs.

    It does not on macOS and Windows, where it listens on no other address: so it is told that this is such a machine.
    """
    before = os.environ.get(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # for the processes that it starts
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR]
        else:
            os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = before[0]


def _quiet_stdout() -> contextlib.AbstractContextManager[Any]:
    """Send what Ray prints of lost workers to standard error: standard output is for results."""
    return contextlib.redirect_stdout(sys.stderr)


@dataclass(eq=False)
class _Seat:
    """A worker: whether it has said that it is ready."""

    actor: Any = field(repr=False)
    is_ready: bool = False


class ClusterEngine:
    """Shares a cohort's shards out to one worker for each GPU of the cluster, or for each core where there is none.

    Ray must be up (`own_ray`, `joined_ray`). `runtime` serves validators in this process; `make_engine` makes what a
    worker runs its shards with. Workers open the phones' faces themselves with `open_cohort`; without it a device's
    faces are sent along, sealed. The cut of a cohort and the order of its sum do not depend on the workers: a shard
    whose worker is lost is run elsewhere, and the result is the same bit for bit.
    """

    name = "cluster"

    def __init__(
        self,
        runtime: Runtime,
        make_engine: MakeEngine,
        *,
        open_cohort: OpenCohort | None = None,
        per_shard: int = PER_SHARD,
    ) -> None:
        self.runtime = runtime
        self._per_shard = per_shard
        self._sends_faces = open_cohort is None
        self._key = secret_bytes(32)
        self._seal = Seal(self._key)
        self._make_engine, self._open_cohort = make_engine, open_cohort
        self._seats: list[_Seat] = []
        self._statics: tuple[Statics, Any] | None = None
        self._actor = ray.remote(Worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        for seat in self._seats:
            ray.kill(seat.actor)
        self._seats.clear()

    @property
    def num_slots(self) -> int:
        """Workers that the cluster has room for now."""
        there = _resources()
        return int(there.get("GPU", 0)) or max(1, int(there.get("CPU", 0)))

    def inner(self) -> str:
        """Return what a worker runs its shards with, and why, in words, once one is ready; raises as `train`."""
        for _ in range(MOST_LOSSES):
            (seat, *_) = self.seats(1)
            try:
                words = str(_answer(seat.actor.ready.remote(), START_TIMEOUT_S))
            except GetTimeoutError as error:
                raise _none_ready() from error
            except RayError as error:
                if raised_at_start(error):
                    raise does_not_start(error) from error
                lost = error
                self.replace(seat)
            else:
                seat.is_ready = True
                return words
        raise does_not_start(lost) from lost

    def train(self, work: RoundWork) -> RoundResult:
        """Return the result of the work's devices on its model.

        Raises as their halves do, and UnavailableError where no worker starts or one shard loses worker after worker.
        """
        shards = shards_of({name: num_images(work.cohort.crops, name) for name in work.devices}, self._per_shard)
        return combined(_Round(self, work, shards).run())

    def seats(self, wanted: int) -> list[_Seat]:
        """Return the workers, as many as are wanted and there is room for; new ones may still be starting."""
        while len(self._seats) < min(wanted, self.num_slots):
            self._seats.append(self._new_seat())
        return list(self._seats)

    def replace(self, lost: _Seat) -> _Seat | None:
        """Forget a lost worker and return a new one, which starts as soon as there is room for it."""
        if lost not in self._seats:
            return None
        self._seats.remove(lost)
        ray.kill(lost.actor)
        self._seats.append(self._new_seat())
        return self._seats[-1]

    def common(self, work: RoundWork) -> Any:
        """Return the reference of what all devices of a round are told."""
        state = self._seal.close(replace(work.state, theta=np.empty(0, np.float32)), "state")
        token = secret_bytes(8)
        return ray.put(Common(token, work.task, work.part, work.dim, work.number, work.sums, work.state.theta, state))

    def statics(self, work: RoundWork) -> Any:
        """Return the reference of public faces and other models, which are sent once."""
        cohort = work.cohort
        now = Statics(cohort.public, cohort.models) if self._sends_faces else Statics(None, {})
        if self._statics is None or not _same(self._statics[0], now):
            self._statics = (now, ray.put(now))
        return self._statics[1]

    def phones(self, work: RoundWork, devices: tuple[str, ...]) -> bytes:
        """Return one shard's devices with what they keep, sealed; and with their faces, where these must be sent."""
        cohort, faced = work.cohort, devices if self._sends_faces else ()
        phones = Phones(
            devices,
            _of(cohort.private, devices),
            {name: np.asarray(cohort.crops[name]) for name in faced},
            _of(cohort.labels, faced),
        )
        return self._seal.close(phones, "phones")

    def opened(self, sealed: bytes) -> RoundResult:
        """Return a shard's result."""
        result: RoundResult = self._seal.open(sealed, "result")
        return result

    def _new_seat(self) -> _Seat:
        needs = {"num_gpus": 1, "num_cpus": 0} if _resources().get("GPU", 0) >= 1 else {"num_cpus": 1}
        options = self._actor.options(**needs, max_restarts=0, max_task_retries=0)
        return _Seat(options.remote(self._key, self._make_engine, self._open_cohort))


class _Round:
    """One round on the workers: who runs what, and what is still to be run."""

    def __init__(self, engine: ClusterEngine, work: RoundWork, shards: tuple[Shard, ...]) -> None:
        self._engine, self._work, self._shards = engine, work, shards
        self._common, self._statics = engine.common(work), engine.statics(work)
        self._waiting = deque(range(len(shards)))  # the largest are first
        self._results: dict[int, RoundResult] = {}
        self._losses: Counter[int] = Counter()
        self._idle: list[_Seat] = []
        self._running: dict[Any, tuple[_Seat, int | None]] = {}

    def run(self) -> list[RoundResult]:
        """Return the shards' results in the order of the shards."""
        for seat in self._engine.seats(len(self._shards)):
            self._welcome(seat)
        while len(self._results) < len(self._shards):
            while self._idle and self._waiting:
                self._start(self._idle.pop(), self._waiting.popleft())
            works = any(shard is not None for _, shard in self._running.values())
            done, _ = ray.wait(list(self._running), timeout=None if works else START_TIMEOUT_S)
            if not done:
                raise _none_ready()
            for ref in done:
                self._finish(ref)
        return [self._results[i] for i in range(len(self._shards))]

    def _welcome(self, seat: _Seat) -> None:
        if seat.is_ready:
            self._idle.append(seat)
        else:
            self._running[seat.actor.ready.remote()] = (seat, None)

    def _start(self, seat: _Seat, number: int) -> None:
        sealed = self._engine.phones(self._work, self._shards[number].devices)
        self._running[seat.actor.train.remote(self._common, self._statics, sealed)] = (seat, number)

    def _finish(self, ref: Any) -> None:
        """Take what a worker has done, or run its shard again where it was lost."""
        seat, number = self._running.pop(ref)
        try:
            answer = _answer(ref)
        except MienError:  # the device halves' own errors, and what keeps a worker from working
            self._engine.close()
            raise
        except RayError as error:
            if number is not None and isinstance(error, RayTaskError):
                self._engine.close()
                raise
            self._lost(seat, number, error)
            return
        if number is None:
            seat.is_ready = True
        else:
            self._results[number] = self._engine.opened(answer)
        self._idle.append(seat)

    def _lost(self, seat: _Seat, number: int | None, error: RayError) -> None:
        if number is not None:
            self._waiting.appendleft(number)
        self._losses[-1 if number is None else number] += 1
        if max(self._losses.values()) >= MOST_LOSSES or (number is None and raised_at_start(error)):
            self._engine.close()
            raise (does_not_start if number is None else _lost_too_many)(error) from error
        if (new := self._engine.replace(seat)) is not None:
            self._welcome(new)


def _answer(ref: Any, timeout_s: float | None = None) -> Any:
    """Return a worker's answer; raises a MienError there as itself, and else as `ray.get`."""
    try:
        return ray.get(ref, timeout=timeout_s)
    except RayTaskError as error:
        if isinstance(error.cause, MienError):
            raise error.cause from error
        raise


def _none_ready() -> UnavailableError:
    return UnavailableError(f"no worker of the cluster was ready within {START_TIMEOUT_S:.0f} s; see `ray status`")


def _lost_too_many(error: RayError) -> UnavailableError:
    return UnavailableError(
        f"{MOST_LOSSES} workers were lost, one after another, over the same phones ({type(error).__name__}); "
        "look for what ends them: most often it is memory"
    )


def _resources() -> Mapping[str, float]:
    resources: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources


def _same(one: Statics, other: Statics) -> bool:
    return one.public is other.public and one.models is other.models


def _of(held: Mapping[str, Any], devices: tuple[str, ...]) -> dict[str, Any]:
    return {name: held[name] for name in devices if name in held}
