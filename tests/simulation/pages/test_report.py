"""The HTML report: one file, no requests, hostile text harmless, numbers as given."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from mien import format as fmt
from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation import Comparisons, det_curve, equal_error_rate
from mien.shell.pages import Axis, Chart, Column, Facts, Figure, Prose, Report, Series, Table, Tile, Tiles, render
from mien.shell.pages.charts import MAX_SERIES, probit
from mien.shell.pages.html import asset
from simulation.pages import figures
from simulation.pages.demo_page import RoundCost, render_demo
from tests.simulation.pages.synthetic_demo import comparisons, demo_report

HOSTILE = "</script><script>alert(1)</script><img src=https://evil.example/x onerror=alert(2)>\"'&<!--"


class Page(HTMLParser):
    """What a test asks of a page: its elements, its text, its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._raw: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._raw = tag if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        self._raw = None

    def handle_data(self, data: str) -> None:
        if self._raw == "script":
            self.scripts.append((self.elements[-1][1], data))
        elif self._raw is None:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"[ \n\t]+", " ", " ".join(self.words))  # narrow spaces inside numbers stay

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def demo_html() -> str:
    return render_demo(demo_report())


def test_page_asks_for_nothing(demo_html: str) -> None:
    page = Page(demo_html)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "form", "base", "img")
        for name in ("src", "srcset", "href", "action", "poster", "background"):
            assert name not in attributes, (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    style = re.search(r"<style>(.*?)</style>", demo_html, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert page.scripts == []
    assert "://" not in " ".join([*page.words, style[1]])


def test_policy_lets_no_script_and_only_the_pages_own_style_in(demo_html: str) -> None:
    page = Page(demo_html)
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'none'; style-src 'sha256-")
    style = re.search(r"<style>(.*?)</style>", demo_html, re.DOTALL)
    assert style is not None
    assert re.findall(r"'sha256-([^']+)'", policy) == [
        base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    ]
    assert not any("style" in attributes for _, attributes in page.elements)
    assert "unsafe" not in policy
    assert "connect-src" not in policy


def test_a_page_of_figures_is_small(demo_html: str, record_property: pytest.RecordProperty) -> None:
    size = len(demo_html.encode())
    record_property("size_bytes", size)
    assert size < 150_000


def test_report_without_figures_is_small_and_runs_no_script() -> None:
    page = render(Report("t", "l", (Prose("a", "a", ("b",)),)))
    assert len(page) < 18_000
    assert "script-src 'none'" in html.unescape(page)
    assert "<script" not in page


def test_hostile_text_stays_text() -> None:
    cells = Table("t", HOSTILE, HOSTILE, (Column(HOSTILE, numeric=True),), ((HOSTILE,),), HOSTILE, (HOSTILE,), HOSTILE)
    cells = dataclasses.replace(cells, details=cells)
    det = figures.det_chart([figures.NamedCurve(HOSTILE, det_curve(comparisons(0.3, seed=0)))])
    scores = figures.score_charts([figures.NamedScores(HOSTILE, comparisons(0.3, seed=0))])
    bands = [figures.Band(HOSTILE, (0, 1), (0.1, 0.2)), figures.Band(HOSTILE, (0, 1), (0.1, 0.2))]
    rounds = figures.rounds_chart(bands, title=HOSTILE, x_title=HOSTILE)
    report = Report(
        HOSTILE,
        HOSTILE,
        (
            Tiles("h", HOSTILE, (Tile(HOSTILE, HOSTILE, HOSTILE),), HOSTILE),
            Prose("p", HOSTILE, (HOSTILE,), is_notice=True),
            Facts("f", HOSTILE, ((HOSTILE, HOSTILE),), HOSTILE, HOSTILE),
            cells,
            *(
                Figure(f"f{n}", HOSTILE, charts, HOSTILE, HOSTILE, cells, HOSTILE)
                for n, charts in enumerate(((det,), scores, (rounds,)))
            ),
        ),
        (HOSTILE,),
    )
    page = Page(render(report))
    assert not page.of("img")
    assert not page.of("script")
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert page.text.count("alert(1)") > 40


def test_tables_and_figures_are_accessible(demo_html: str) -> None:
    page = Page(demo_html)
    assert all(th.get("scope") in ("row", "col") for th in page.of("th"))
    drawn = page.of("figure")
    assert len(drawn) == 3
    for figure in drawn:
        words = re.search(f'id="{figure.get("aria-describedby")}">(.*?)</p>', demo_html)
        assert words is not None
        assert len(words[1]) > 40
    assert all(svg.get("aria-hidden") == "true" for svg in page.of("svg") if svg.get("class") in ("chart", "swatch"))
    assert len([svg for svg in page.of("svg") if svg.get("class") == "chart"]) == 4  # one figure has two panels
    assert len(page.of("figcaption")) == 3
    assert page.of("html")[0].get("lang") == "en"
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(name) is None or attributes[name] in ids
    assert len(page.of("caption")) == len(page.of("table"))


def test_demo_page_says_what_was_measured(demo_html: str) -> None:
    report, text = demo_report(), Page(demo_html).text
    for result in (report.before, report.after):
        assert fmt.percent(equal_error_rate(det_curve(result.comparisons)).value) in text
        assert result.model_id in text
    for expected in (
        "1\u202f350 mated, 43\u202f500 non-mated comparisons",
        "7 of 8",
        "class embeddings",
        "on: the coordinator sees the sum of a cohort, no single contribution",
        "99.00\u202f% before, −0.33 points",
        "Match score 0.687, at or above the threshold 0.412",
        "Not this person score 0.114, below the threshold 0.412",
        "research, non-commercial",
        "8 phones, 8 rounds",
        "make demo",
    ):
        assert expected in text, expected


def test_demo_page_is_a_function_of_its_report(demo_html: str) -> None:
    assert render_demo(demo_report()) == demo_html


def test_demo_page_does_not_praise_what_got_worse() -> None:
    report = demo_report()
    worse = dataclasses.replace(
        report,
        before=report.after,
        after=report.before,
        own_population=None,
        own_population_skipped="MIEN_DATA is unset.",
        rounds=(*report.rounds, RoundCost(9, 8, 3, 1000, 10, 5.0, None, "aborted: quorum")),
    )
    page = Page(render_demo(worse))
    tiles = [d.get("class") for d in page.of("div") if (d.get("class") or "").startswith("tile ")]
    assert tiles[:3] == ["tile bad", "tile bad", "tile plain"]
    assert tiles[3:] == ["tile good", "tile good"]  # the owner and the stranger
    assert "8 phones, 8 rounds" in page.text
    assert "aborted: quorum" in page.text
    assert "MIEN_DATA is unset." in page.text


def test_demo_page_shows_the_control_and_no_line_of_one_round() -> None:
    report = demo_report()
    control = dataclasses.replace(report.before, name="control", comparisons=comparisons(0.36, seed=3))
    once = dataclasses.replace(report, control=control, rounds=report.rounds[:1], num_people=16)
    page = Page(render_demo(once))
    eer = equal_error_rate(det_curve(control.comparisons)).value
    gap = equal_error_rate(det_curve(report.after.comparisons)).value - eer
    assert f"control; the phones' own part is {fmt.points(gap)}" in page.text
    assert f"control: equal error rate {fmt.percent(eer)}" in page.text
    assert "8 phones, 1 round" in page.text
    assert "enrolled 16 people" in page.text
    assert "Round by round" not in page.text


def test_demo_page_with_rates_below_resolution() -> None:
    few = dataclasses.replace(
        demo_report().before, comparisons=comparisons(0.3, seed=0, num_mated=40, num_non_mated=50)
    )
    text = Page(render_demo(dataclasses.replace(demo_report(), before=few))).text
    assert text.count("not measurable") == 2
    assert "Accepted at FMR 10\u202f%" in text


def test_demo_report_refuses_gaps() -> None:
    with pytest.raises(ConfigError, match="own_population_skipped"):
        dataclasses.replace(demo_report(), own_population=None)
    with pytest.raises(ConfigError, match="no rounds"):
        dataclasses.replace(demo_report(), rounds=())


def test_det_points_lie_on_the_curve() -> None:
    curve = det_curve(comparisons(0.3, seed=5))
    series = figures.det_chart([figures.NamedCurve("m", curve)]).series[0]
    assert 100 < len(series.points) <= 400
    for (f, m), told in zip(series.points, series.told, strict=True):
        k = int(np.flatnonzero((curve.fmr == f) & (curve.fnmr == m))[0])
        assert told.startswith(f"FMR {curve.fmr[k] * 100:.3g} %, FNMR {curve.fnmr[k] * 100:.3g} %, threshold ")
        assert float(told.rpartition(" ")[2]) == pytest.approx(curve.thresholds[k], abs=6e-4)
    # Phi^-1: 2.275 % is two standard deviations out.
    assert probit(0.022750131948179195) == pytest.approx(-2.0)


def test_det_of_separated_scores_has_nothing_to_draw() -> None:
    curve = det_curve(Comparisons(np.array([0.9, 0.8]), np.array([0.1, 0.2])))
    with pytest.raises(UndefinedMetricError, match="no DET"):
        figures.det_chart([figures.NamedCurve("m", curve)])


def test_roc_and_histogram_hold_the_scores() -> None:
    scores = Comparisons(np.array([0.9, 0.8, 0.3]), np.array([0.11, 0.2, 0.85, 0.0]))
    roc = figures.roc_chart([figures.NamedCurve("m", det_curve(scores))])
    assert (0.25, pytest.approx(1 / 3)) in roc.series[0].points
    (panel,) = figures.score_charts([figures.NamedScores("m", scores, 0.5)])
    non_mated, mated = panel.series
    assert sum(y for _, y in mated.points) == pytest.approx(1)
    assert non_mated.points[44][1] == 0.25  # bin of 0.11: floor(1.11 * 40)
    assert panel.threshold == 0.5


def test_every_series_has_a_colour_light_and_dark() -> None:
    css = asset("kit.css")
    for number in range(1, MAX_SERIES + 1):
        assert re.search(rf"--s{number}: light-dark\(#[0-9a-f]{{6}}, #[0-9a-f]{{6}}\);", css)
        assert f".s{number} {{ --tone: var(--s{number}); }}" in css
    assert set(re.findall(r'class="curve (\w+)"', render_demo(demo_report()))) == {"s1", "s2", "s3", "s4", "guide"}


def test_bad_sections_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 cells for 1 columns"):
        Table("t", "t", "c", (Column("a"),), (("1", "2"),))
    with pytest.raises(ConfigError, match="tone"):
        Tile("a", "b", tone="great")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="language"):
        Report("t", "l", (), language='en"><script>')
    with pytest.raises(ConfigError, match="one value for each place"):
        figures.Band("n", (0, 1), (0.1,))
    with pytest.raises(ConfigError, match="at least one model"):
        figures.score_charts([])


def test_what_is_not_finite_leaves_a_gap() -> None:
    points = tuple((float(x), float("nan") if x == 2 else 0.5) for x in range(5))
    axis = Axis(0.0, 4.0, ())
    drawing = Chart((Series("a", points),), axis, axis).drawing
    assert "nan" not in drawing
    assert [len(points.split()) for points in re.findall(r'<polyline[^>]* points="([^"]*)"', drawing)] == [2, 2]
    assert drawing.count('class="dot') == 4


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (fmt.count(1234567), "1\u202f234\u202f567"),
        (fmt.percent(0.01234), "1.23\u202f%"),
        (fmt.points(-0.004), "−0.40 points"),
        (fmt.points(0.0), "±0.00 points"),
        (fmt.size(999), "999\u202fB"),
        (fmt.size(1000), "1.00\u202fkB"),
        (fmt.size(12_845_120), "12.8\u202fMB"),
        (fmt.size(999_700), "1.00\u202fMB"),
        (fmt.size(5_000_000_000_000), "5000\u202fGB"),
        (fmt.duration(8.44), "8.4\u202fs"),
        (fmt.duration(119.4), "119\u202fs"),
        (fmt.duration(119.6), "2\u202fmin 00\u202fs"),
        (fmt.duration(200), "3\u202fmin 20\u202fs"),
        (fmt.score(-0.25), "−0.250"),
        (fmt.fraction(3, 1200), "3 of 1\u202f200"),
    ],
)
def test_numbers_are_written_for_people(found: str, expected: str) -> None:
    assert found == expected
