"""The references of the device SDK and of the simulation are their docstrings'."""

from __future__ import annotations

import pytest

from scripts.write_api_reference import PAGES, Page, written

DEVICE, SIMULATION = PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_the_page_is_written_from_the_docstrings(page: Page) -> None:
    assert written(page) == page.path.read_text(encoding="utf-8"), "run python -m scripts.write_api_reference"


@pytest.mark.parametrize(
    ("page", "name"),
    [(page, name) for page in PAGES for name in page.package.__all__],
    ids=lambda each: each.file if isinstance(each, Page) else each,
)
def test_every_public_name_has_an_entry(page: Page, name: str) -> None:
    _, found, rest = written(page).partition(f"\n## {name}\n")
    assert found
    entry = rest.split("\n## ")[0]
    assert entry.strip()


def test_methods_are_shown_as_one_calls_them() -> None:
    page = written(DEVICE)
    assert "set_consent(name: str, *, agreed: bool) -> Person" in page
    assert "    conditions: Conditions | None = None,\n" in page
    assert "(self" not in page
    assert "raises `InviteError` before it has joined" in page


def test_the_simulation_shows_its_functions_and_records() -> None:
    page = written(SIMULATION)
    assert "frame_of(folder: Path) -> DataFrame" in page
    assert "to_frame() -> DataFrame" in page
    assert "(self" not in page
