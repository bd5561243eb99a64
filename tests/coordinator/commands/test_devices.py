"""Which device a word on the command line means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from typer import Typer
from typer.testing import CliRunner

from coordinator.commands import devices
from coordinator.commands import registrar_cli as registrar_cli
from coordinator.operator.registrar_client import Device, RegistrarAdmin, find_device
from mien.errors import TABLE, ConfigError, MienError, NotFoundError


class _Listing:
    """A registrar that lists these devices."""

    def __init__(self, *ids: str) -> None:
        self._ids = ids

    async def list_devices(self) -> AsyncIterator[Device]:
        for device_id in self._ids:
            yield Device(device_id, "default", "", 0, 0, revoked=False)


def found(wanted: str, *ids: str) -> str:
    registrar = cast("RegistrarAdmin", _Listing(*ids))
    return asyncio.run(find_device(registrar, wanted, listed_by="mien-coordinator device list"))


def test_an_id_or_its_beginning() -> None:
    assert [found(word, "aa11", "aa22", "aa2") for word in ("aa11", "aa1", "aa2", "aa22", "aa1…")] == [
        *("aa11", "aa11", "aa2", "aa22", "aa11")
    ]


@pytest.mark.parametrize(("wanted", "said"), [("aa", "several devices fit"), ("b", "no device fits"), ("", "fit")])
def test_no_device_is_shut_out_by_a_guess(wanted: str, said: str) -> None:
    with pytest.raises(NotFoundError, match=rf"{said}.*mien-coordinator device list"):
        found(wanted, "aa11", "aa22")
    with pytest.raises(NotFoundError):
        found("", "aa11")


@pytest.mark.parametrize("error", TABLE)
def test_the_registrars_list_is_shown_whatever_keeps_the_coordinators_half_away(
    error: type[MienError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object) -> None:
        raise error("the operator's key is missing; restore it")

    monkeypatch.setattr(devices, "_ask", lambda *_folders: None)
    monkeypatch.setattr(devices, "list_joined", lambda _ask: [Device("aa11", "default", "", 0, 0, revoked=False)])
    monkeypatch.setattr(devices, "ask", refused)
    shown = CliRunner().invoke(devices.app, ["list", "--home", "."])
    assert shown.exit_code == 0
    assert "aa11" in shown.stdout
    assert "left out: the operator's key is missing; restore it." in " ".join(shown.stdout.split())
    found = json.loads(CliRunner().invoke(devices.app, ["list", "--home", ".", "--json"]).stdout)
    assert [row["device_id"] for row in found["devices"]] == ["aa11"]
    assert found["told_missing"] == "the operator's key is missing; restore it"


@pytest.mark.parametrize("hours", ["inf", "1e300", "721"])
@pytest.mark.parametrize("command", [(devices.app, "invite"), (registrar_cli.app, "invite")])
def test_an_invite_of_no_sane_life_asks_no_registrar(command: tuple[Typer, str], hours: str, tmp_path: Path) -> None:
    app, name = command
    done = CliRunner().invoke(app, [name, "--home", str(tmp_path / "none"), "--valid-hours", hours])
    assert isinstance(done.exception, ConfigError)
    assert "30 days" in str(done.exception)
