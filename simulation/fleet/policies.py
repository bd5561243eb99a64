"""Policies side by side: tasks as operators submit them, changed field by field, and run over the same phones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.commands.tasks import read_task
from mien.errors import ConfigError
from mien.records import from_mapping, to_mapping
from mien.shell.settings import value_of
from mien.specs import TaskSpec
from simulation.runs import grid

_NEXT: Final = re.compile(r",(?=[^,=\[\]{}\"']+=)")
"""A comma after which another field begins; commas within a value stay."""


@dataclass(frozen=True)
class Policy:
    """A task under the name by which tables call it."""

    name: str
    task: TaskSpec


def changed(task: TaskSpec, changes: str) -> TaskSpec:
    """Return a task with `field=value` for each of some fields, separated by commas; values as TOML has them, text also
    without quotes.

    Raises ConfigError for what is no such change, an unknown field, or a value that does not fit.
    """
    values = to_mapping(task)
    for change in _NEXT.split(changes):
        name, sign, value = change.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"--set {change!r} is no change; write field=value, such as cohort.over_selection=1.3")
        values = grid.changed(values, {name.strip(): value_of(value)})
    return from_mapping(TaskSpec, values)


def policies(paths: Sequence[Path], changes: Sequence[str]) -> tuple[Policy, ...]:
    """Return the tasks in files, each as it is, and then with each set of changes.

    With one file and changes only, tables call policies by their changes.
    """
    found: list[Policy] = []
    for path in paths:
        task = read_task(path)
        name = path.stem if len(paths) > 1 else task.name
        found.append(Policy(name, task))
        for change in changes:
            found.append(Policy(change if len(paths) == 1 else f"{name}: {change}", changed(task, change)))
    names = [policy.name for policy in found]
    if len(set(names)) < len(names):
        raise ConfigError("two policies have one name; give the files, or the changes, names of their own")
    return tuple(found)
