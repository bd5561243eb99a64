"""The dashboard in a real browser: every page, wide and narrow, light and dark, by keyboard, live."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.dashboard.pages import NAVIGATION
from mien.format import percent
from mien.protocol.rounds import Stage
from tests.browser.chromium import Browser, Page, needs_chromium, running
from tests.browser.test_report import LEGIBILITY
from tests.coordinator.dashboard.made_up import PASSWORD, Fleet, lived_in, people_measured
from tests.coordinator.dashboard.visitor import Visitor, add_user, served

pytestmark = needs_chromium

NARROW, WIDE = (360, 740), (1280, 900)
LIVE = "document.querySelector('.live.on') !== null"
# Elements beyond the window's edges, but for what scrolls by itself or is meant for ears alone.
OUTSIDE = """
[...document.querySelectorAll("body *")]
  .filter((e) => !e.closest(".scroll, svg, .hidden, .skip, .side ul") && e.getClientRects().length)
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < -0.5)
  .map((e) => e.tagName + "." + e.className)
"""
FOCUSED = (
    "(() => { const e = document.activeElement; return [e.tagName, e.id, (e.textContent || e.name || '').trim()]; })()"
)
# Of every chart: how many places its lines go through, its width, how wide they reach, whether all are within it.
DRAWN = """
[...document.querySelectorAll(".chart")].map((chart) => {
  const box = chart.getBoundingClientRect();
  const lines = [...chart.querySelectorAll(".curve")].map((line) => line.getBoundingClientRect());
  const span = Math.max(...lines.map((l) => l.right)) - Math.min(...lines.map((l) => l.left));
  const within = (l) => l.left >= box.left && l.right <= box.right && l.top >= box.top && l.bottom <= box.bottom;
  const places = [...chart.querySelectorAll("polyline.curve")].reduce((sum, line) => sum + line.points.length, 0);
  return [places, box.width, span, lines.every(within)];
})
"""
OUTLINE = "getComputedStyle(document.activeElement).outlineStyle"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = lived_in(tmp_path_factory.mktemp("shown"))
    add_user(fleet.home)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def address(fleet: Fleet) -> Iterator[str]:
    with served(fleet.home) as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def paths(address: str) -> list[str]:
    """Every kind of page: those of the navigation, a task, three rounds, two models."""
    visitor = Visitor(address)
    visitor.sign_in()

    def links(path: str, part: str) -> list[str]:
        text = visitor.get(path).text
        found = [piece.partition('"')[0] for piece in text.split('href="')[1:]]
        return list(dict.fromkeys(href for href in found if part in href))

    tasks = links("/tasks", "/tasks/")
    spring = next(
        task for task in tasks if ">spring</h1>" in visitor.get(task).text.replace("<h1>spring ", ">spring</h1>")
    )
    rounds, models = links(spring, "/rounds/"), links("/models", "/models/")
    return [*(href for _, _, href in NAVIGATION), spring, rounds[0], rounds[4], rounds[5], models[0], models[-1]]


def press(page: Page, key: str, code: int, *, shift: bool = False) -> None:
    """Press a key as a person would."""
    text = {"Enter": "\r", " ": " "}.get(key, "")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text,
                  modifiers=8 if shift else 0)  # fmt: skip


def write(page: Page, text: str) -> None:
    """Type into what has the focus."""
    page.call("Input.insertText", text=text)


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A tab in which somebody signed in by keyboard; nothing may be complained about or fetched from elsewhere."""
    page = browser.new_page()
    page.resize(*WIDE)
    page.prefer("light")
    page.call("Network.clearBrowserCookies")
    page.open(address)
    assert page.run("location.pathname") == "/login"
    assert page.run(FOCUSED)[1] == "name"
    write(page, "alice")
    press(page, "Tab", 9)
    write(page, PASSWORD)
    page.loading(lambda: press(page, "Enter", 13))
    assert page.run("location.pathname") == "/"
    yield page
    page.run("localStorage.clear()")
    page.close()
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith(address)] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
def test_every_page_is_legible_and_fits(
    page: Page, address: str, paths: list[str], size: tuple[int, int], scheme: str
) -> None:
    page.resize(*size, mobile=size == NARROW)
    page.prefer(scheme)
    for path in paths:
        page.open(address.rstrip("/") + path)
        page.run("document.querySelectorAll('main details').forEach(each => { each.open = true; })")
        page.settle()
        assert page.run("document.documentElement.scrollWidth") == size[0], path
        assert page.run(OUTSIDE) == [], path
        found = page.run(LEGIBILITY)
        assert len(found) > 8, path
        assert [item for item in found if item[1] < 4.5] == [], path
        assert [item for item in found if item[2] < 12] == [], path


def test_figures_are_drawn_at_any_width(page: Page, address: str) -> None:
    for size in (NARROW, WIDE):
        page.resize(*size, mobile=size == NARROW)
        page.open(address + "models")
        drawn = page.run(DRAWN)
        assert len(drawn) == 2
        for num_places, width, span, is_inside in drawn:
            assert num_places > 7
            assert span > 0.75 * width
            assert is_inside


def test_measured_quality_is_on_the_pages(page: Page, address: str, paths: list[str]) -> None:
    """Records of the program that measures become curves with their table, thresholds, and results in words."""
    points = people_measured(gain=0.18, dims=64).record["points"]
    for path, curve in (("models", "TAR over releases"), (paths[-2].lstrip("/"), "DET on public-faces")):
        page.open(address + path)
        titles = page.run("[...document.querySelectorAll('h2, h3, figcaption')].map(e => e.textContent.trim())")
        assert any(curve in title for title in titles), (path, titles)
        assert page.run("document.querySelector('#det .chart .curve').points.length") > 4
        page.run("document.querySelectorAll('#det details').forEach(each => { each.open = true; })")
        cells = page.run(
            "[...document.querySelectorAll('#det table tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))"
        )
        assert [cell[3] for cell in cells[:4]] == [f"{point['fnmr']:.4f}" for point in points], path
    text = page.run("document.getElementById('measurements').innerText")
    assert f"EER {percent(people_measured(gain=0.18, dims=64).record['eer'])}; TAR 100" in text
    assert page.run("document.querySelectorAll('#thresholds tbody tr').length") == 4


def test_the_log_of_rounds_is_verified_and_shown(page: Page, address: str) -> None:
    page.open(address + "log")
    page.wait_until("document.getElementById('tree').innerText.includes('holds')")
    assert "registrar" in page.run("document.getElementById('cosignatures').innerText")
    assert page.run("document.querySelectorAll('#entries tbody tr').length") > 20


def test_all_of_it_can_be_reached_by_keyboard(page: Page, address: str) -> None:
    page.open(address)
    press(page, "Tab", 9)
    assert page.run(FOCUSED)[2] == "Skip to the content"
    assert page.run("document.activeElement.getBoundingClientRect().top") >= 0  # it shows once it has the focus
    press(page, "Enter", 13)
    page.wait_until("document.activeElement.id === 'main'")
    page.open(address)
    seen = []
    for _ in range(80):
        press(page, "Tab", 9)
        name, _, words = page.run(FOCUSED)
        if name == "BODY":
            break
        assert page.run(OUTLINE) != "none", words
        seen.append(words)
    wanted = ["Mien", "Dark", "alice", *(words for _, words, _ in NAVIGATION), "spring"]
    assert list(dict.fromkeys(words for words in seen if words in wanted)) == wanted
    page.run("[...document.querySelectorAll('.side a')].find(a => a.textContent === 'Privacy budget').focus()")
    page.loading(lambda: press(page, "Enter", 13))
    assert page.run("document.querySelector('h1').textContent.trim()") == "Privacy budget"
    page.run("document.querySelector('#spent-1 summary').focus()")
    press(page, "Enter", 13)
    page.wait_until("document.querySelector('#spent-1 details').open")


def test_light_and_dark_follow_the_system_until_somebody_chooses(page: Page, address: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.prefer("dark")
    dark = page.run(ground)
    assert light != dark
    assert page.run("document.getElementById('theme').textContent") == "Light"
    page.run("document.getElementById('theme').click()")
    assert page.run(ground) == light
    page.open(address + "tasks")
    assert page.run(ground) == light  # remembered, and there before the page is drawn


def test_a_round_that_closes_appears_by_itself(page: Page, fleet: Fleet, address: str) -> None:
    task = fleet.add_task("live", fleet.store.tasks()[0].base_model_id)
    page.open(f"{address}tasks/{task.task_id}")
    page.wait_until(LIVE)
    assert page.run("document.querySelector('#rounds .empty') !== null")
    num_loads = len([url for url in page.requests if url.endswith(".css")])
    fleet.clock.at = max(fleet.clock.at, fleet.end.timestamp())
    task = fleet.play(task, 1, stop_at=Stage.UPLOAD)
    page.wait_until("document.querySelectorAll('#rounds tbody tr').length === 1")
    page.wait_until("document.querySelector('#rounds .badge').textContent.includes('upload')")
    page.run("document.querySelector('#rounds a').focus()")
    fleet.play(task, 2)
    page.wait_until("document.getElementById('live-note').textContent.includes('Task live: round 2 closed')")
    page.wait_until("document.querySelector('#rounds .badge').textContent.includes('closed')")
    assert page.run("document.querySelectorAll('#rounds tbody tr').length") == 2
    assert page.run("document.activeElement.closest('#rounds') !== null")  # the focus stays where it was
    page.wait_until("document.querySelector('#summary .facts').textContent.includes('2 of 20 rounds')")
    assert len([url for url in page.requests if url.endswith(".css")]) == num_loads  # the page was not loaded again


def test_pages_work_without_scripts(page: Page, address: str) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.call("Page.navigate", url=address + "audit?action=model.")
        page.wait_until("document.querySelectorAll('#entries tbody tr').length > 3")
        assert page.run("getComputedStyle(document.getElementById('theme')).display") == "none"
        assert page.run("document.querySelector('select[name=action]').value") == "model."
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
