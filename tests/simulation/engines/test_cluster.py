"""The cluster engine on real nodes of Ray's: sums as in one process, also when a worker or a whole node is killed."""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mien.errors import ConfigError, MissingDependencyError, NotFoundError, UnavailableError
from mien.methods import find_method
from mien.methods.base import Runtime
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.base import Cohort, PublicFaces, RoundResult, RoundWork, SequentialEngine, combined
from simulation.engines.choice import Choice
from simulation.engines.placement import shards_of
from simulation.engines.population import num_images
from tests.tiny import made_up_crops, tiny_cnn

ray = pytest.importorskip("ray")
from ray._common.utils import get_default_ray_temp_dir  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from simulation.engines import cluster as cluster_engine  # noqa: E402
from simulation.engines.cluster import ClusterEngine  # noqa: E402
from simulation.engines.cluster_worker import MakeEngine  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WAIT_S = 240.0
PER_SHARD = 2
TINY, DIM = tiny_cnn(), 8
PART = TINY.part()
TASK = TaskSpec(
    name="cluster",
    method="fedface",
    rounds=2,
    cohort=CohortSpec(size=10, min_reports=2),
    local=LocalSpec(lr=0.1),
    privacy=PrivacySpec(("class_embeddings",), min_cohort=2, max_weight=5, secure_aggregation="off"),
    seed=3,
)
PHONES = {f"phone-{i}": made_up_crops(1 + i % 4, seed=i) for i in range(10)}
PUBLIC = PublicFaces(np.concatenate([made_up_crops(3, seed=100 + k) for k in range(4)]), np.repeat(np.arange(4), 3))
COHORT = Cohort(PHONES, public=PUBLIC)


def open_cohort() -> Cohort:
    """Return the phones as a worker finds them."""
    return COHORT


@dataclass
class Gated:
    """Runs a shard, but first waits while there is a file `gate`, and says beside it who waits."""

    folder: Path
    runtime: Runtime
    name: str = "gated"

    def train(self, work: RoundWork) -> RoundResult:
        """Return what one device after another makes of the model, once the gate is open."""
        gate = self.folder / "gate"
        if gate.exists():
            me = {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}
            waiting = self.folder / f"waiting-{os.getpid()}"
            waiting.with_suffix(".new").write_text(json.dumps(me))
            waiting.with_suffix(".new").rename(waiting)
            until(lambda: not gate.exists())
        return SequentialEngine(self.runtime).train(work)


@dataclass(frozen=True)
class MakeGated:
    """Makes a worker's engine."""

    folder: Path

    def __call__(self, device: str) -> Gated:
        assert device == "cpu"
        return Gated(self.folder, TINY.runtime())


def until(holds: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Run three nodes with a core each, and this process as their driver."""
    folder = tempfile.mkdtemp(prefix="mien-ray-")
    # It asks often whether nodes are there, and waits long for those that are busy: one that is gone refuses at once.
    quick_to_notice = {
        "health_check_period_ms": 1000,
        "health_check_initial_delay_ms": 1000,
        "health_check_timeout_ms": 60_000,
    }
    kills_nobody = {"memory_monitor_refresh_ms": 0}  # for memory that others hold, of which workers would be lost
    private = {"include_dashboard": False, "node_ip_address": "127.0.0.1", "temp_dir": folder}
    # It notes its address in Ray's own folder, which is there only where something else of Ray's was started before.
    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**private, "num_cpus": 1, "_system_config": quick_to_notice | kills_nobody},
        shutdown_at_exit=False,
    )
    for _ in range(2):
        cluster.add_node(wait=False, **private, num_cpus=1)
    try:
        cluster.wait_for_nodes(WAIT_S)
        with cluster_engine.loopback_only(), cluster_engine.joined_ray(cluster.address):
            yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def work_of(task: TaskSpec = TASK, number: int = 1, cohort: Cohort = COHORT) -> RoundWork:
    state = find_method(task.method).server_start(task, PART, TINY.theta)
    return RoundWork(task, PART, DIM, state, cohort, tuple(cohort.crops), number)


def by_hand(work: RoundWork) -> RoundResult:
    """Return the same shards one after another in this process."""
    images = {name: num_images(work.cohort.crops, name) for name in work.devices}
    engine = SequentialEngine(TINY.runtime())
    return combined([engine.train(replace(work, devices=s.devices)) for s in shards_of(images, PER_SHARD)])


def assert_same_bits(one: RoundResult, other: RoundResult) -> None:
    for lane in one.total.layout.summed:
        np.testing.assert_array_equal(one.total[lane.name], other.total[lane.name])
    for what in ("revealed", "private"):
        mine, theirs = getattr(one, what), getattr(other, what)
        assert mine.keys() == theirs.keys() == set(PHONES)
        for device in mine:
            for name in mine[device]:
                np.testing.assert_array_equal(mine[device][name], theirs[device][name])


@contextlib.contextmanager
def in_mid_round(engine: ClusterEngine, work: RoundWork, folder: Path, workers: int) -> Iterator[list[dict[str, Any]]]:
    """Run a round up to where so many workers are at a shard; then the block runs, and then the round goes on."""
    results: list[RoundResult] = []
    (folder / "gate").touch()
    thread = threading.Thread(target=lambda: results.append(engine.train(work)))
    thread.start()
    try:
        until(lambda: len(list(folder.glob("waiting-*[0-9]"))) >= workers)
        yield [json.loads(path.read_text()) for path in sorted(folder.glob("waiting-*[0-9]"))]
    finally:
        (folder / "gate").unlink()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    (result,) = results
    assert_same_bits(result, by_hand(work))


def test_a_lost_worker_and_a_lost_node_change_no_bit(nodes: Any, tmp_path: Path) -> None:
    """A worker is killed at its shard in round 1, a node and all its processes in round 2; round 3 runs on the rest."""
    with ClusterEngine(TINY.runtime(), MakeGated(tmp_path), open_cohort=open_cohort, per_shard=PER_SHARD) as engine:
        assert engine.num_slots == 3
        assert engine.inner() == "engine gated"
        first = work_of()
        with in_mid_round(engine, first, tmp_path, workers=3) as busy:
            assert len({each["node"] for each in busy}) == 3
            os.kill(busy[0]["pid"], signal.SIGKILL)
        for path in tmp_path.glob("waiting-*"):
            path.unlink()
        second = replace(first, number=2, cohort=replace(COHORT, private=by_hand(first).private))
        with in_mid_round(engine, second, tmp_path, workers=3) as busy:
            lost = next(node for node in nodes.worker_nodes if node.node_id in {each["node"] for each in busy})
            (victim,) = [each["pid"] for each in busy if each["node"] == lost.node_id]
            nodes.remove_node(lost, allow_graceful=False)
            with contextlib.suppress(ProcessLookupError):  # it may have followed its node
                os.kill(victim, signal.SIGKILL)
        assert_same_bits(engine.train(replace(second, number=3)), by_hand(replace(second, number=3)))
        until(lambda: engine.num_slots == 2)


def test_faces_in_memory_are_sent_sealed_and_a_device_halfs_error_is_its_own(nodes: Any, tmp_path: Path) -> None:
    ring = replace(TASK, method="fedavg", cohort=CohortSpec(size=10, min_reports=3), privacy=PrivacySpec(min_cohort=3))
    with ClusterEngine(TINY.runtime(), MakeGated(tmp_path), per_shard=5) as engine:
        work = replace(work_of(ring), sums="ring")
        trained = engine.train(work)
        total = trained.total
        assert trained.workers == ("gated",)
        alone = SequentialEngine(TINY.runtime()).train(work).total  # one shard: in the ring any cut gives the same
        for lane in total.layout.summed:
            np.testing.assert_array_equal(total[lane.name], alone[lane.name])
        sealed = engine.phones(work, ("phone-0",))
        assert PHONES["phone-0"].tobytes()[:64] not in sealed
        assert engine.phones(work, ("phone-0",)) != sealed
        with pytest.raises(ConfigError, match="one identity"):
            engine.train(work_of(replace(ring, options={"loss": "cosface"})))


@pytest.mark.parametrize("fails", ["make_engine", "open_cohort"])
def test_why_a_worker_cannot_work_is_told(nodes: Any, tmp_path: Path, fails: str) -> None:
    if fails == "make_engine":
        broken = ClusterEngine(TINY.runtime(), no_engine, open_cohort=open_cohort)
        with broken as engine, pytest.raises(MissingDependencyError, match=r"^torch is not installed here"):
            engine.inner()
    else:
        blind = ClusterEngine(TINY.runtime(), MakeGated(tmp_path), open_cohort=no_faces, per_shard=PER_SHARD)
        with blind as engine, pytest.raises(NotFoundError, match=r"^no folder lfw here"):
            engine.train(work_of())


@dataclass(frozen=True)
class _Absent:
    """Makes an engine by a module that is missing where the workers are."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("mien_module_of_another_machine",)

    def __call__(self, device: str) -> Any:
        raise AssertionError


@dataclass(frozen=True)
class _DiesAtStart:
    """Ends its worker before it has an engine, as a broken library does, or the system where memory is short."""

    words: str

    def __call__(self, device: str) -> Any:
        os.write(2, self.words.encode())
        os.kill(os.getpid(), signal.SIGKILL)


def has_no_module(device: str) -> Any:
    importlib.import_module("mien_module_of_another_machine")


ABSENT = "last words: ModuleNotFoundError: No module named 'mien_module_of_another_machine'. "
BROKEN: dict[str, tuple[MakeEngine, bool, str]] = {  # what ends a worker, whether in a round, what is said of it
    "missing module, as it is opened": (_Absent(), True, ABSENT),
    "missing module, as it starts": (has_no_module, False, ABSENT),
    "killed with a word": (_DiesAtStart("\nlibtorch.so: no\x07 file\n\n"), True, "last words: libtorch.so: no? file. "),
    "killed without one": (_DiesAtStart(""), False, "last words: worker exit type SYSTEM_ERROR. "),
}


@pytest.mark.parametrize("how", BROKEN)
def test_workers_that_end_at_their_start_say_so_and_blame_no_phones(
    nodes: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_engine, in_a_round, words = BROKEN[how]
    monkeypatch.setattr(cluster_engine, "MOST_LOSSES", 2)
    with (
        ClusterEngine(TINY.runtime(), make_engine, open_cohort=open_cohort, per_shard=10) as engine,
        pytest.raises(UnavailableError, match=r"^a worker of the cluster does not start") as caught,
    ):
        engine.train(work_of()) if in_a_round else engine.inner()
    assert words in caught.value.message
    assert "phone" not in caught.value.message


def no_faces() -> Cohort:
    raise NotFoundError("no folder lfw here; mount it")


def no_engine(device: str) -> Any:
    raise MissingDependencyError("torch is not installed here; install it")


def test_a_worker_tells_what_it_runs_shards_with_and_why(nodes: Any) -> None:
    with ClusterEngine(TINY.runtime(), chosen, open_cohort=open_cohort) as engine:
        assert engine.inner() == "engine sequential: one of one"


def chosen(device: str) -> Choice:
    return Choice(SequentialEngine(TINY.runtime()), "one of one")


def test_it_listens_on_loopback_addresses_alone(nodes: Any) -> None:
    listening = [address for pid in descendants(os.getpid()) for address in listening_addresses(pid)]
    assert len(listening) >= 6  # GCS, and two or more of each of three raylets
    assert [address for address in listening if not address.is_loopback] == []


def descendants(root: int) -> set[int]:
    """Return the processes that this one has started, and theirs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parents[int(path.parent.name)] = int(path.read_text(errors="replace").rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in {root, *found}} - found:
        found |= more
    return found


def listening_addresses(pid: int) -> Iterator[ipaddress.IPv4Address]:
    """Yield the addresses on which a process accepts TCP connections; of IPv6 ones, the IPv4 address that they map."""
    sockets = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(path.readlink().name)
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                last_word = bytes.fromhex(words[1].split(":")[0])[-4:]
                yield ipaddress.IPv4Address(last_word[::-1])


def test_a_shard_that_ends_every_worker_is_given_up(nodes: Any, tmp_path: Path) -> None:
    with (
        ClusterEngine(TINY.runtime(), _MakeDeadly(), open_cohort=open_cohort, per_shard=10) as engine,
        pytest.raises(UnavailableError, match="3 workers were lost"),
    ):
        engine.train(work_of())


@dataclass(frozen=True)
class _MakeDeadly:
    def __call__(self, device: str) -> Any:
        return _Deadly(TINY.runtime())


@dataclass(frozen=True)
class _Deadly:
    runtime: Runtime
    name: str = "deadly"

    def train(self, work: RoundWork) -> RoundResult:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError
