"""Asynchronous mode as pure functions: which cohorts may be in flight, how stale one is, and what its sum then weighs.

Source: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (AISTATS 2022), Algorithm 1. A buffer
is a cohort: its members train on one model, so that under secure aggregation staleness is a fact about the sum and not
about a member. The coordinator and the simulator decide by these functions alone; neither has rules of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mien.contribution import Total
from mien.errors import LateError
from mien.specs import AsynchronousSpec, TaskSpec

UPDATE: str = "delta"
"""The lane that staleness weighs: the others count and weigh the cohort, and tell of it."""


@dataclass(frozen=True)
class Flight:
    """One cohort under way; `base` is how many models its task had made when it was formed, None before that."""

    number: int
    base: int | None = None


def may_open(task: TaskSpec, version: int, flights: Iterable[Flight]) -> bool:
    """Return whether a task that has made `version` models may gather one more cohort beside those under way.

    One cohort gathers at a time, and no more are under way than there are models still to make: phones would train for
    nothing.
    """
    assert task.asynchronous is not None
    under_way = list(flights)
    if any(flight.base is None for flight in under_way):
        return False
    return len(under_way) < min(task.asynchronous.max_concurrency, task.rounds - version)


def staleness(version: int, base: int) -> int:
    """Return tau: how many models were made since a cohort's base."""
    return version - base


def weight(spec: AsynchronousSpec, tau: int) -> float:
    """Return s(tau) = (1 + tau)^-a, in (0, 1]: FedBuff's 1/sqrt(1 + tau) for a = 0.5."""
    return float((1 + tau) ** -spec.staleness_exponent)


def is_overdue(spec: AsynchronousSpec, version: int, base: int) -> bool:
    """Return whether a cohort's sum is too stale to be applied; models are only ever added, so it stays so."""
    return staleness(version, base) > spec.max_staleness


def overdue_in_words(spec: AsynchronousSpec, version: int, base: int) -> str:
    """Return the message to the members of a cohort that is discarded."""
    return (
        f"{staleness(version, base)} models were made since this cohort's, more than asynchronous.max_staleness allows "
        f"({spec.max_staleness}); its updates are discarded"
    )


def weighed(spec: AsynchronousSpec, total: Total, version: int, base: int) -> Total:
    """Return a cohort's total with its update times s(tau), its weight left as it is.

    The mean update that a method's step takes is then s(tau) sum(w delta) / sum(w). Were the weight scaled too, s would
    cancel. Raises LateError for a total that is too stale.
    """
    if is_overdue(spec, version, base):
        raise LateError(overdue_in_words(spec, version, base))
    vector = total.vector.copy()
    vector[total.layout.slices[UPDATE]] *= weight(spec, staleness(version, base))
    return replace(total, vector=vector)
