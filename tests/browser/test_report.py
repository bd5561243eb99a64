"""The demo's report in a real browser: drawn, silent, asking nobody for anything, legible everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.pages.demo_page import render_demo
from tests.browser.chromium import Browser, Page, needs_chromium, running
from tests.simulation.pages.synthetic_demo import demo_report

pytestmark = needs_chromium

# Of every element with text of its own: the colour contrast with what lies behind it (WCAG 2.2, 1.4.3), and its size.
LEGIBILITY = """
(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("main *")]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .filter((e) => e.getClientRects().length && !["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName))
    .map((e) => {
      const style = getComputedStyle(e), drawn = e instanceof SVGElement;
      const pair = [luminance(channels(drawn ? style.fill : style.color)), luminance(behind(e))].sort((a, b) => b - a);
      return [e.textContent.trim().slice(0, 40), (pair[0] + 0.05) / (pair[1] + 0.05), parseFloat(style.fontSize)];
    });
})()
"""
LINES = "[...document.querySelectorAll('.chart .curve')].map(line => getComputedStyle(line).stroke)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_demo(demo_report()), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The report, opened on a desk; nothing may have been asked for or complained about in the end."""
    page = browser.new_page()
    page.resize(1200, 900)
    page.open(address)
    yield page
    assert page.requests == [address]
    assert page.problems == []


def test_figures_are_drawn(page: Page) -> None:
    sizes = page.run(
        "[...document.querySelectorAll('figure')].map(figure => ["
        "  figure.querySelectorAll('.chart').length, figure.getBoundingClientRect().height,"
        "  figure.querySelectorAll('.curve').length])"
    )
    assert len(sizes) == 3
    for num_svg, height, num_lines in sizes:
        assert num_svg >= 1
        assert height >= 300
        assert num_lines >= 1
    # A line is drawn over most of its plot, not squeezed into a corner.
    spans = page.run(
        "[...document.querySelectorAll('.chart')].map(plot => Math.max(...[...plot.querySelectorAll('.curve')]"
        "  .map(line => line.getBoundingClientRect().width)) / plot.getBoundingClientRect().width)"
    )
    assert all(span > 0.5 for span in spans)
    legends = page.run("[...document.querySelectorAll('.legend span')].map(text => text.textContent)")
    assert {"Released model", "After 8 rounds"} <= set(legends)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_legible(page: Page, scheme: str) -> None:
    page.prefer(scheme)
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    found = page.run(LEGIBILITY)
    assert len(found) > 100
    assert [item for item in found if item[1] < 4.5] == []
    assert [item for item in found if item[2] < 12] == []


def test_light_and_dark_follow_the_reader(page: Page) -> None:
    page.prefer("light")
    light, light_lines = page.run(BACKGROUND), page.run(LINES)
    page.prefer("dark")
    dark, dark_lines = page.run(BACKGROUND), page.run(LINES)
    assert light != dark
    assert len(light_lines) == len(dark_lines) >= 4
    assert all(a != b for a, b in zip(light_lines, dark_lines, strict=True))
    page.prefer("light")
    assert page.run(LINES) == light_lines


def test_phone_shows_all_of_it(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.resize(360, 740, mobile=True)
    page.open(address)
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    page.settle()
    assert page.run("window.innerWidth") == 360
    assert page.run("document.documentElement.scrollWidth") == 360
    # What is too wide scrolls by itself, inside the page.
    outside = page.run(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg') "
        "  && (e.getBoundingClientRect().right > 360.5 || e.getBoundingClientRect().left < -4.5))"
        "  .map(e => e.tagName + '.' + e.className)"
    )
    assert outside == []
    widths = page.run("[...document.querySelectorAll('.chart')].map(e => e.getBoundingClientRect().width)")
    assert all(250 <= width <= 360 for width in widths)
    page.resize(740, 360, mobile=True)  # turned
    page.wait_until("[...document.querySelectorAll('.chart')].every(e => e.getBoundingClientRect().width > 500)")
    assert page.run("document.documentElement.scrollWidth") == 740
    assert page.problems == []


def test_the_head_of_a_table_stays_while_the_table_scrolls(browser: Browser, address: str) -> None:
    """Wide and long ones scroll in their box; their head, and where there is room the row's own, stay in sight."""
    page = browser.new_page()
    for width, keeps_rows_head in ((360, False), (1200, True)):
        page.resize(width, 740)
        page.open(address)
        # Whatever the report holds: the box is made smaller than its table, both ways.
        page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        page.run(
            "(() => { const box = document.querySelector('.scroll:has(thead)'); box.id = 'box';"
            " box.style.maxHeight = '6rem'; box.style.width = '12rem';"
            " box.querySelector('table').style.width = '90rem'; box.scrollTop = 40; box.scrollLeft = 60; })()"
        )
        page.settle()
        moved, head, row, body = page.run(
            "(() => { const box = document.getElementById('box'), at = (e) => e.getBoundingClientRect();"
            " const outer = at(box), edge = box.clientTop;"
            " return [[box.scrollTop, box.scrollLeft], at(box.querySelector('thead th')).top - outer.top - edge,"
            " at(box.querySelector('tbody th')).left - outer.left - box.clientLeft,"
            " at(box.querySelector('tbody tr')).top - outer.top - edge]; })()"
        )
        assert moved == [40, 60]
        assert abs(head) < 1
        assert (abs(row) < 1) is keeps_rows_head
        assert body < 40


def test_details_open_by_keyboard(page: Page) -> None:
    closed = "document.querySelector('details').open"
    assert page.run(closed) is False
    page.run("document.querySelector('summary').focus()")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    page.wait_until(closed)


def test_a_page_that_asks_and_fails_is_noticed(browser: Browser, tmp_path: Path) -> None:
    """The checks above can fail."""
    path = tmp_path / "bad.html"
    path.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('no'); throw new Error('oh');</script>")
    page = browser.new_page()
    page.open(path.as_uri())
    assert "http://127.0.0.1:9/x.png" in page.requests
    assert len(page.problems) >= 2
