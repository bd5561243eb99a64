"""Which device a word on the command line means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from coordinator.registrar.client import Device, RegistrarAdmin, find_device
from mien.errors import NotFoundError


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
