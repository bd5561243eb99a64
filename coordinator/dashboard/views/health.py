"""Is the installation in order, and what is it told: what doctor finds without keys, and every setting."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.dashboard.situation import Situation
from coordinator.home.config import CoordinatorConfig
from coordinator.home.settings import shown
from mien.shell.pages import Cell, Page, Table, columns
from mien.shell.settings import Resolved

_NOTE = (
    "The dashboard reads no key of the authority, of operators or of the store: mien-coordinator doctor also looks at "
    "those, at every model's bytes and at the running server."
)


def health_page(situation: Situation, resolved: Resolved[CoordinatorConfig]) -> Page:
    """Return the checks and the settings."""
    faults = situation.faults
    lede = (
        f"{len(faults)} of {len(situation.checks)} checks found a fault."
        if faults
        else "Every check is as it should be."
    )
    return Page(
        "health",
        "Health and settings",
        lede,
        (_checks(situation), _settings(resolved.config, resolved.origins)),
        commands=("mien-coordinator doctor", "mien-coordinator config show"),
    )


def _checks(situation: Situation) -> Table:
    rows = tuple(
        (check.name, Cell("fault", tone="bad") if not check.ok else Cell("good", tone="good"), check.detail)
        for check in situation.checks
    )
    return Table(
        "checks", "Checks", "What was looked at, and what was found", columns("What", "State", "Found"), rows, _NOTE
    )


def _settings(config: CoordinatorConfig, origins: Mapping[str, str]) -> Table:
    rows = tuple(
        (Cell(name, is_code=True), Cell(_value(value), is_code=True), origins[name])
        for name, value in shown(config).items()
    )
    note = "Passwords in addresses are masked. A change takes effect when the coordinator starts again."
    heads = columns("Setting", "Value", "From")
    return Table("settings", "Settings", "Every setting, its value and where that came from", heads, rows, note)


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return "–" if value == "" else str(value)
