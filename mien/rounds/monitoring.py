"""Records for monitors of running tasks and of budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskNow:
    """One running task: where its round is, how many devices are how far in it, and how much waits to be handled."""

    name: str
    population: str
    stage: str
    devices: Mapping[str, int]
    queue_length: int


@dataclass(frozen=True)
class BudgetNow:
    """Spent part of one budget of a population; infinite once a sum was opened without noise."""

    population: str
    delta: float
    epsilon: float
    spent: float
