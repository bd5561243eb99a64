"""The pages of a sweep and of one of its runs in a real browser: drawn, silent, legible, whole on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulation.program.reports import report
from tests.browser.chromium import Browser, Page, needs_chromium, running
from tests.browser.test_report import LEGIBILITY
from tests.simulation.pages.synthetic_sweep import write_sweep_folder

pytestmark = needs_chromium
NUM_FIGURES = {"sweep": 4, "run": 6}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages' addresses by what they show."""
    out = tmp_path_factory.mktemp("sweep")
    write_sweep_folder(out)
    run = out / "runs" / "published-s0"
    for folder in (out, run):
        report(folder, None, as_json=True)
    return {"sweep": (out / "report.html").as_uri(), "run": (run / "report.html").as_uri()}


@pytest.mark.parametrize("shown", NUM_FIGURES)
def test_pages_are_drawn_and_legible(browser: Browser, addresses: dict[str, str], shown: str) -> None:
    page = browser.new_page()
    page.resize(1280, 900)
    page.open(addresses[shown])
    drawn = page.run("[...document.querySelectorAll('.chart')].map(p => p.querySelectorAll('.curve, .dot').length)")
    assert len(drawn) == NUM_FIGURES[shown]
    assert all(marks >= 1 for marks in drawn)
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        found = page.run(LEGIBILITY)
        assert [item for item in found if item[1] < 4.5 or item[2] < 12] == []
    _finish(page, addresses[shown])


@pytest.mark.parametrize("shown", NUM_FIGURES)
def test_a_phone_shows_all_of_it(browser: Browser, addresses: dict[str, str], shown: str) -> None:
    page = browser.new_page()
    page.resize(360, 740, mobile=True)
    page.open(addresses[shown])
    assert page.run("document.documentElement.scrollWidth") == 360
    cut = page.run(
        "[...document.querySelectorAll('figure')].flatMap(figure => {"
        "  const box = figure.getBoundingClientRect();"
        "  return [...figure.querySelectorAll('.legend span, .axis, .tick')]"
        "    .filter(text => text.getBoundingClientRect().right > box.right + 1"
        "      || text.getBoundingClientRect().left < box.left - 1 || text.getBoundingClientRect().top < box.top - 1)"
        "    .map(text => text.textContent);"
        "})"
    )
    assert cut == []
    _finish(page, addresses[shown])


def _finish(page: Page, address: str) -> None:
    """Nothing was asked for or complained about."""
    assert page.requests == [address]
    assert page.problems == []
    page.close()
