"""The reference of the device SDK is its docstrings'."""

from __future__ import annotations

import pytest

import device_sdk
from scripts.write_api_reference import PAGE, written


def test_the_page_is_written_from_the_docstrings() -> None:
    assert written() == PAGE.read_text(encoding="utf-8"), "run python -m scripts.write_api_reference"


@pytest.mark.parametrize("name", device_sdk.__all__)
def test_every_public_name_has_an_entry(name: str) -> None:
    _, found, rest = written().partition(f"\n## {name}\n")
    assert found
    entry = rest.split("\n## ")[0]
    assert entry.strip()


def test_methods_are_shown_as_one_calls_them() -> None:
    page = written()
    assert "set_consent(name: str, *, agreed: bool) -> Person" in page
    assert "    conditions: Conditions | None = None,\n" in page
    assert "(self" not in page
    assert "raises `InviteError` before it has joined" in page
