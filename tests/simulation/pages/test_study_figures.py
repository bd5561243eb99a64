"""Figures of several runs side by side: what they draw, and that every trace has a colour of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.evaluation import Comparisons, det_curve
from mien.shell.pages import Chart, Figure
from mien.shell.pages.charts import MAX_SERIES
from simulation.pages.figures import (
    Band,
    NamedCurve,
    angles_figure,
    band_of,
    det_chart,
    map_chart,
    rounds_chart,
    weights_chart,
)
from simulation.pages.study_page import study_sections
from simulation.runs.experiment import Column, Experiment, Results, Row, Table


def curve() -> NamedCurve:
    rng = np.random.default_rng(0)
    found = det_curve(Comparisons(rng.normal(0.6, 0.2, 300), rng.normal(0.2, 0.2, 900)))
    return NamedCurve("m", found, 1, (0.01, 0.1, 0.2), (0.2, 0.05, 0.0), (0.4, 0.1, 0.1))


def angles() -> Chart:
    (chart,) = angles_figure(
        {
            "a": [{"edges_deg": [0, 60, 120, 180], "counts": each} for each in ([0, 1, 1], [0, 2, 0])],
            "b": [{"edges_deg": [0, 60, 120, 180], "counts": [1, 0, 0]}],
        },
        "of a test.",
    ).charts
    assert isinstance(chart, Chart)
    return chart


ALL: dict[str, Chart] = {
    "bands": rounds_chart(
        [Band("<b>", (0, 1), (0.2, 0.1), (0.1, 0.05), (0.3, 0.2)), Band("b", (0,), (0.5,))], title="EER",
    ),
    "det": det_chart([curve()]),
    "angles": angles(),
    "weights": weights_chart({"x": [(1, 0.5), (2, 0.4)], "y": [(1, 0.5), (2, 0.6)]}),
    "map": map_chart([[0, 1], [2, 3], [4, 5]], [0, 1, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_every_series_is_drawn_in_a_colour_of_its_own(name: str) -> None:
    drawing, chart = ALL[name].drawing, ALL[name]
    for number, each in enumerate(chart.series, 1):
        kind = "guide" if each.is_guide else f"s{number}"
        assert f'class="{"dot" if each.kind == "marks" else "curve"} {kind}"' in drawing
        assert each.is_guide or (each.told and f"<title>{each.told[0]}</title>" in drawing)
    assert drawing.count('class="area') == sum(bool(each.band or each.is_filled) for each in chart.series)


def test_bands_hold_their_means() -> None:
    first, second = ALL["bands"].series
    assert first.band == ((0, 0.1, 0.3), (1, 0.05, 0.2))
    assert first.points == ((0, 0.2), (1, 0.1))
    assert first.told == ("round 0: 20.00 %", "round 1: 10.00 %")
    assert (second.name, second.points, second.band) == ("b", ((0, 0.5),), ())
    assert [name for _, name in ALL["bands"].legend] == ["<b>", "b"]  # the template escapes them


def test_a_band_of_an_error_curve_leaves_out_what_probits_cannot_show() -> None:
    drawn, guide = ALL["det"].series
    assert drawn.band == ((0.01, 0.2, 0.4), (0.1, 0.05, 0.1))  # the third place has no lower end above 0
    assert guide.is_guide


def test_angles_are_shares_of_pairs() -> None:
    first, second = ALL["angles"].series
    assert [y for _, y in first.points] == [0, 0.75, 0.25, 0]
    assert [y for _, y in second.points] == [1.0, 0, 0, 0]


def test_one_mark_a_person() -> None:
    assert [[x for x, _ in each.points] for each in ALL["map"].series] == [[0, 4], [2]]


def test_means_over_runs_where_all_of_them_are() -> None:
    band = band_of("a", [{0: 0.2, 1: 0.1, 2: 0.4}, {0: 0.4, 1: 0.1}])
    assert band.x == (0, 1)
    assert band.mean == pytest.approx((0.3, 0.1))
    # Student's t with one degree of freedom: 12.706 times 0.1; a rate is never below 0.
    assert band.low == pytest.approx((0.0, 0.1))
    assert band.high == pytest.approx((0.3 + 12.7062 * 0.1, 0.1), rel=1e-4)
    assert band_of("b", [{0: 0.2}]).low == ()


def test_what_a_figure_refuses() -> None:
    with pytest.raises(ConfigError, match="1 to 8 series, not 9"):
        angles_figure({str(i): [{"edges_deg": [0, 180], "counts": [1]}] for i in range(MAX_SERIES + 1)}, "")
    with pytest.raises(ConfigError, match="one value for each place"):
        Band("a", (1, 2), (0.5,))


def test_pages_of_studies_draw_what_records_hold() -> None:
    rows = (Row("a", "A", {}), Row("b", "B", {}))
    study = Experiment("s", "S", lambda job: {}, (Table("T", rows, (Column("EER", "eer"),)),))
    shares = [[1, {"x": 0.5, "y": 0.5}], [2, {"x": 0.4, "y": 0.6}]]
    metrics: dict[tuple[str, int], dict[str, Any]] = {
        ("a", 0): {"eer": 0.1, "trace": [[1, 0.2], [2, 0.1]], "weights": shares},
        ("a", 1): {"eer": 0.1, "trace": [[1, 0.3], [2, 0.1]]},
        ("b", 0): {"eer": 0.2, "angles": {"edges_deg": [0, 90, 180], "counts": [1, 2]}},
    }
    results = Results(study, (0, 1), {key: {"metrics": each} for key, each in metrics.items()})
    sections = [section for section in study_sections(results) if isinstance(section, Figure)]
    assert [each.title for each in sections] == ["Error by round", "Angles between classes", "Weighting by round"]
    (eer,), (weights,) = sections[0].charts, sections[2].charts
    assert isinstance(eer, Chart)
    assert [y for _, y in eer.series[0].points] == pytest.approx([0.25, 0.1])
    assert isinstance(weights, Chart)
    assert [each.name for each in weights.series] == ["x", "y"]
    assert study_sections(Results(study, (0,), {})) == []
