"""Conditions as a machine tells them: a made-up file tree, and a made-up program that asks the bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk.rounds.conditions import StatedConditions, SystemConditions, conditions_from


def supply(root: Path, name: str, **values: str) -> None:
    """Add a power supply to a file tree."""
    folder = root / "sys/class/power_supply" / name
    folder.mkdir(parents=True)
    for key, value in values.items():
        (folder / key).write_text(value + "\n", encoding="ascii")


def load(root: Path, value: float) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/loadavg").write_text(f"{value:.2f} 0.50 0.40 2/345 6789\n", encoding="ascii")


def bus(folder: Path, script: str) -> str:
    """Return a program that answers in place of busctl."""
    program = folder / "busctl"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    program.chmod(0o755)
    return str(program)


def asked(
    root: Path, *, busctl: str = "/nonexistent/busctl", stated: StatedConditions | None = None
) -> SystemConditions:
    return SystemConditions(stated, root=root, busctl=busctl, num_cores=4, own_times_s=lambda: (0.0, 0.0))


@pytest.mark.parametrize(
    ("supplies", "charging"),
    [
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery", "status": "Not charging"}}, True),
        ({"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery", "status": "Discharging"}}, False),
        ({"usb": {"type": "USB", "online": "1"}, "BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Charging"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Unknown"}}, None),
        ({"BAT0": {"type": "Battery"}}, None),
        ({"BAT0": {"type": "Battery", "status": "Full"}, "BAT1": {"type": "Battery", "status": "Discharging"}}, False),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, None),
        ({"usb": {"type": "USB", "online": "0"}}, None),
        ({}, None),
    ],
)
def test_the_battery_is_asked(tmp_path: Path, supplies: dict[str, dict[str, str]], charging: bool | None) -> None:
    for name, values in supplies.items():
        supply(tmp_path, name, **values)
    conditions = asked(tmp_path)
    assert conditions.told()["charging"] is charging
    assert conditions.unmet() == (("charging",) if charging is False else ())


def test_a_machine_in_use_is_not_idle(tmp_path: Path) -> None:
    assert asked(tmp_path).told()["idle"] is None
    load(tmp_path, 0.9)
    assert asked(tmp_path).unmet() == ()
    load(tmp_path, 1.1)  # of 4 cores, more than a quarter each
    assert asked(tmp_path).unmet() == ("idle",)


def test_training_does_not_stop_itself(tmp_path: Path) -> None:
    times = [0.0, 0.0]
    conditions = SystemConditions(root=tmp_path, busctl="", num_cores=1, own_times_s=lambda: (times[0], times[1]))
    load(tmp_path, 0.95)
    assert conditions.unmet() == ("idle",)
    times[:] = [600.0, 600.0]  # ten minutes of one core, all of it this program's
    assert conditions.unmet() == ()
    times[:] = [600.0, 660.0]  # idle for a minute: its share has fallen to 1/e, 0.37, and others take the rest
    assert conditions.unmet() == ("idle",)


@pytest.mark.parametrize(
    ("answer", "unmetered"),
    [("u 1", False), ("u 2", True), ("u 3", False), ("u 4", True), ("u 0", None), ("nonsense", None), ("", None)],
)
def test_the_network_is_asked(
    tmp_path: Path, answer: str, unmetered: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_sdk.rounds.conditions._BUS_PATIENCE_S", 60.0)  # a busy machine starts a program slowly
    program = bus(tmp_path, f'[ "$6" = Metered ] && echo "{answer}"')
    assert asked(tmp_path, busctl=program).told()["unmetered"] is unmetered


def test_a_bus_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path).told()["unmetered"] is None
    assert asked(tmp_path, busctl=bus(tmp_path, "echo oops >&2; exit 1")).told()["unmetered"] is None


def test_what_is_stated_as_missing_is_missing(tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="1")
    supply(tmp_path, "BAT0", type="Battery", status="Full")
    stated = StatedConditions(charging=False, unmetered=False)
    assert asked(tmp_path, stated=stated).unmet() == ("charging", "unmetered")


def test_a_setting_chooses() -> None:
    stated = StatedConditions(idle=False)
    assert conditions_from("stated", stated) is stated
    assert isinstance(conditions_from("system", stated), SystemConditions)
    assert "idle" in conditions_from("system", stated).unmet()
