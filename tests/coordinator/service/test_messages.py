"""What devices say of themselves and name: nothing that a log or a database would choke on goes further."""

from __future__ import annotations

import pytest

from coordinator.service.messages import check_id, printable
from mien.errors import NotFoundError


def test_what_a_device_says_of_itself_is_printable_and_short() -> None:
    assert printable("mien-device 0.1 (Läufer)") == "mien-device 0.1 (Läufer)"
    assert printable("x\0y\x1b[2J\r\nz\u2028") == "xy[2Jz"
    assert len(printable("x" * 10_000)) == 80


@pytest.mark.parametrize("text", ["a\0b", "a\nb", "x" * 81])
def test_an_id_that_none_can_be_is_not_found(text: str) -> None:
    with pytest.raises(NotFoundError):
        check_id(text)


def test_ids_pass_unchanged() -> None:
    for text in ("", "0123456789abcdef", "f" * 64):
        assert check_id(text) == text
