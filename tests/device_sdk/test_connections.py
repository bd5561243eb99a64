"""A device's connection to its coordinator: none is used that the server has not greeted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk.device import Device
from device_sdk.server.identity import IdentityFiles
from device_sdk.storage.home import Home
from device_sdk.storage.keystore import open_key_store
from mien.errors import VersionError
from mien.protocol.v1 import common_pb2
from tests.device_sdk.scripted import Fleet, Script, scripted_coordinator


def test_a_connection_that_came_to_no_version_is_not_used_the_next_time(tmp_path: Path) -> None:
    """Whoever takes part asks for it again and again, and goes on after an update that failed on it."""
    home, script = Home.open(tmp_path / "phone"), Script()
    files = IdentityFiles(home, open_key_store(home.folder, "file", warn=lambda _message: None))
    fleet, greeting = replace(Fleet.create(), key=files.key()), script.hello
    script.hello = lambda: common_pb2.HelloReply(protocol_version=99)
    with scripted_coordinator(fleet, script) as address:
        files.save(fleet.identity(address))
        with Device.open(home.folder, options={"keystore": "file"}) as device, device._connections() as client:
            for _ in range(2):
                with pytest.raises(VersionError):
                    client()
            script.hello = greeting
            client().check_in(())
            client().check_in(())
    assert script.calls == ["hello"] * 3 + ["check_in"] * 2
