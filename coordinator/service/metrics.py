"""The coordinator's metrics in Prometheus's terms; docs/operator/production.md says what they mean.

Counters and histograms are fed as things happen, from any thread; what can be looked up (devices in a stage, the budget
that is spent) is looked up when somebody asks. No metric names a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from coordinator.rounds.engine import TaskNow
from coordinator.store.report import BudgetNow
from mien.protocol.ids import PopulationId
from mien.rounds.records import RoundRecord
from mien.rounds.rollouts import RollOutRecord

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_STAGE_BUCKETS_S: Final = (0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 86400)
_STORE_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


@dataclass(frozen=True)
class Now:
    """The coordinator at one instant."""

    is_draining: bool = False
    tasks: tuple[TaskNow, ...] = ()
    tasks_by_state: Mapping[str, int] = field(default_factory=dict)
    waiting_check_ins: int = 0
    active_uploads: int = 0
    store_queue: int = 0
    revocation_age_s: float = float("inf")
    is_revocation_list_refused: bool = False
    forgotten_revocations: int = 0
    replicas: int = 0
    populations_run: int = 0
    budgets: tuple[BudgetNow, ...] = ()
    roll_outs: tuple[RollOutRecord, ...] = ()


_FLEET_GAUGES: Final = {
    "phones": "Phones that compared the newest staged roll-out's model with the one before",
    "tar": "True accept rate on phones, at the model's threshold",
    "fmr": "False match rate on phones, at the model's threshold",
    "tar_drop": "How much less often phones accept their owners than with the model before",
    "effective_dimension": "How many directions the embeddings of different people use on phones",
}


class Metrics:
    """One coordinator's metrics, in a registry of their own."""

    def __init__(self, software: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        # A second series for every counter that nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry: Final = CollectorRegistry()
        self._monotonic = monotonic
        self._since: dict[int, float] = {}
        registry = self._registry
        self._rounds = Counter(
            "mien_rounds", "Attempts of rounds that ended, by outcome", ["population", "outcome"], registry=registry
        )
        self._stages = Histogram(
            "mien_stage_seconds", "How long stages took", ["stage"], buckets=_STAGE_BUCKETS_S, registry=registry
        )
        self._uploads = Counter("mien_uploads", "Contributions that were committed", registry=registry)
        self._upload_bytes = Counter("mien_upload_bytes", "Bytes of committed contributions", registry=registry)
        self._calls = Counter("mien_calls", "Calls that ended well", ["method"], registry=registry)
        self._refused = Counter(
            "mien_refused_calls", "Calls that did not, by reason", ["method", "reason"], registry=registry
        )
        self._store = Histogram(
            "mien_store_seconds",
            "How long the database took for one transaction, waiting for its turn included",
            buckets=_STORE_BUCKETS_S,
            registry=registry,
        )
        self._now = _NowCollector(software)
        registry.register(self._now)
        ProcessCollector(registry=registry)

    # Fed as things happen

    def call_ended(self, method: str, reason: str = "") -> None:
        """Count a call; `reason` is the code of the error that it ended with, empty for none."""
        name = method.strip("/").removeprefix("mien.v1.")
        if reason:
            self._refused.labels(name, reason).inc()
        else:
            self._calls.labels(name).inc()

    def store_answered(self, seconds: float) -> None:
        """Count a transaction."""
        self._store.observe(seconds)

    def round_moved(
        self, population: PopulationId, before: RoundRecord | None, after: RoundRecord, num_uploads: int
    ) -> None:
        """Count a committed transition of an attempt; `before` is None where it begins."""
        if num_uploads:
            self._uploads.inc(num_uploads)
            self._upload_bytes.inc(after.upload_bytes - (before.upload_bytes if before is not None else 0))
        if before is not None and before.stage is after.stage:
            return
        now = self._monotonic()
        began = self._since.pop(after.id, None)
        if before is not None and began is not None:  # a stage that began before this program did is left out
            self._stages.labels(before.stage.value).observe(now - began)
        if after.stage.is_over:
            self._rounds.labels(population, after.stage.value).inc()
        else:
            self._since[after.id] = now

    # Looked up when somebody asks

    def exposition(self, now: Now) -> bytes:
        """Return everything in Prometheus's text format."""
        self._now.now = now
        return generate_latest(self._registry)


class _NowCollector(Collector):
    """Draws gauges from the newest `Now`: what is over leaves no label behind."""

    def __init__(self, software: str) -> None:
        self._software = software
        self.now = Now()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        now, tasks = self.now, self.now.tasks
        yield _gauge("mien_build_info", "Always 1; the program and its version", "software", [((self._software,), 1)])
        yield _gauge("mien_draining", "1 while the coordinator is shutting down", "", [((), now.is_draining)])
        states = [((state,), count) for state, count in now.tasks_by_state.items()]
        yield _gauge("mien_tasks", "Tasks by state", "state", states)
        stages = [((task.name, task.population, task.stage), 1) for task in tasks]
        words = "Cohorts of a task by stage: 1 for the one that its round is in"
        yield _gauge("mien_task_stage", words, "task population stage", stages)
        devices = [
            ((task.name, task.population, step), count) for task in tasks for step, count in task.devices.items()
        ]
        words = "Devices of a task's attempt by how far they are; waiting: candidates, waiting_labelled: of these"
        yield _gauge("mien_round_devices", words, "task population step", devices)
        queues = [((task.name, task.population), task.queue_length) for task in tasks]
        yield _gauge("mien_task_queue", "Events that wait to be handled by a task", "task population", queues)
        yield _gauge("mien_waiting_check_ins", "Check-ins that are being held", "", [((), now.waiting_check_ins)])
        yield _gauge("mien_active_uploads", "Contributions that are arriving", "", [((), now.active_uploads)])
        yield _gauge("mien_store_queue", "Transactions that run or wait for their turn", "", [((), now.store_queue)])
        words = "Replicas that were heard of lately, this one included; 0 for a coordinator that runs alone"
        yield _gauge("mien_replicas", words, "", [((), now.replicas)])
        words = "Populations whose tasks this replica runs"
        yield _gauge("mien_populations_run", words, "", [((), now.populations_run)])
        words = "Seconds since the registrar confirmed the revocation list; +Inf if it never did"
        yield _gauge("mien_revocation_list_age_seconds", words, "", [((), now.revocation_age_s)])
        words = "1 while the registrar gives a revocation list that contradicts an earlier one"
        yield _gauge("mien_revocation_list_refused", words, "", [((), now.is_revocation_list_refused)])
        words = "Revoked certificates that the registrar forgot; they are refused all the same"
        yield _gauge("mien_revocations_forgotten", words, "", [((), now.forgotten_revocations)])
        spent = [((budget.population, f"{budget.delta:g}"), budget.spent) for budget in now.budgets]
        words = "Epsilon that a population has spent at a delta"
        yield _gauge("mien_privacy_epsilon_spent", words, "population delta", spent)
        limits = [((budget.population, f"{budget.delta:g}"), budget.epsilon) for budget in now.budgets]
        words = "Epsilon that a population may spend at a delta"
        yield _gauge("mien_privacy_epsilon_budget", words, "population delta", limits)
        yield from _roll_out_gauges(now.roll_outs)


def _roll_out_gauges(roll_outs: Sequence[RollOutRecord]) -> Iterator[Metric]:
    """Yield where each population's newest staged roll-out is, and what phones said of its model."""
    words = "Share of the phones that the newest staged roll-out has reached, by its state"
    shares = [((each.population, each.model_id[:12], each.state.value), each.share) for each in roll_outs]
    yield _gauge("mien_roll_out_share", words, "population model state", shares)
    for name, words in _FLEET_GAUGES.items():
        told = [
            ((each.population, each.model_id[:12]), each.figures[name]) for each in roll_outs if name in each.figures
        ]
        yield _gauge(f"mien_fleet_{name}", words, "population model", told)


def _gauge(name: str, words: str, labels: str, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family, sums = GaugeMetricFamily(name, words, labels=labels.split()), dict[tuple[str, ...], float]()
    for names, value in values:  # a task's cohorts are added up
        sums[names] = sums.get(names, 0) + value
    for names, value in sums.items():
        family.add_metric(names, value)
    return family
