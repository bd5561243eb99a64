"""Figures of several runs side by side: what they draw, and that every trace has a colour of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from mien.errors import ConfigError
from mien.evaluation import Comparisons, det_curve
from simulation.pages import figures
from simulation.pages.figures import SERIES, NamedCurve
from simulation.pages.html import Figure
from simulation.pages.study_figures import (
    Band,
    CurveBand,
    angles_figure,
    band_of,
    bands_figure,
    det_bands_figure,
    map_figure,
    weights_figure,
)
from simulation.pages.study_page import study_sections
from simulation.runs.study import Column, Results, Row, Study, Table


def curve() -> NamedCurve:
    rng = np.random.default_rng(0)
    return NamedCurve("m", det_curve(Comparisons(rng.normal(0.6, 0.2, 300), rng.normal(0.2, 0.2, 900))), "series_1")


ALL: dict[str, go.Figure] = {
    "bands": bands_figure(
        [Band("<b>", (0, 1), (0.2, 0.1), (0.1, 0.05), (0.3, 0.2)), Band("b", (0,), (0.5,))],
        x_title="Round", y_title="EER", percent=True,
    ),
    "det": det_bands_figure([CurveBand(curve(), (0.01, 0.1, 0.2), (0.2, 0.05, 0.0), (0.4, 0.1, 0.1))]),
    "angles": angles_figure({"a": [0, 3, 1], "b": [1, 0, 0]}, [0, 60, 120, 180]),
    "weights": weights_figure({"x": [(1, 0.5), (2, 0.4)], "y": [(1, 0.5), (2, 0.6)]}),
    "map": map_figure([[0, 1], [2, 3], [4, 5]], [0, 1, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_every_trace_has_a_role_with_a_colour(name: str) -> None:
    css = (Path(figures.__file__).parent / "assets" / "report.css").read_text()
    for trace in ALL[name].data:
        assert css.count(f"--{trace.meta['role'].replace('_', '-')}:") == 2  # light and dark


def test_bands_hold_their_means() -> None:
    fill, first, second = ALL["bands"].data
    assert list(fill.y) == [30.0, 20.0, 5.0, 10.0]
    assert list(fill.x) == [0, 1, 1, 0]
    assert list(first.y) == [20.0, 10.0]
    assert first.name == "&lt;b&gt;"
    assert (second.name, second.meta["role"]) == ("b", "series_2")


def test_a_band_of_an_error_curve_leaves_out_what_probits_cannot_show() -> None:
    *_, fill = ALL["det"].data
    assert fill.fill == "toself"
    assert len(fill.x) == 4  # the third place has no lower end above 0


def test_angles_are_shares_of_pairs() -> None:
    first, second = ALL["angles"].data
    assert list(first.y) == [0, 75.0, 25.0, 0]
    assert list(second.y) == [100.0, 0, 0, 0]


def test_one_mark_a_person() -> None:
    assert [list(trace.x) for trace in ALL["map"].data] == [[0, 4], [2]]


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
        angles_figure({str(i): [1] for i in range(len(SERIES) + 1)}, [0, 180])
    with pytest.raises(ConfigError, match="one value for each place"):
        Band("a", (1, 2), (0.5,))


def test_pages_of_studies_draw_what_records_hold() -> None:
    rows = (Row("a", "A", {}), Row("b", "B", {}))
    study = Study("s", "S", lambda job: {}, (Table("T", rows, (Column("EER", "eer"),)),))
    shares = [[1, {"x": 0.5, "y": 0.5}], [2, {"x": 0.4, "y": 0.6}]]
    metrics: dict[tuple[str, int], dict[str, Any]] = {
        ("a", 0): {"eer": 0.1, "trace": [[1, 0.2], [2, 0.1]], "weights": shares},
        ("a", 1): {"eer": 0.1, "trace": [[1, 0.3], [2, 0.1]]},
        ("b", 0): {"eer": 0.2, "angles": {"edges_deg": [0, 90, 180], "counts": [1, 2]}},
    }
    results = Results(study, (0, 1), {key: {"metrics": each} for key, each in metrics.items()})
    sections = [section for section in study_sections(results) if isinstance(section, Figure)]
    assert [each.title for each in sections] == ["Error by round", "Angles between classes", "Weighting by round"]
    assert list(sections[0].figure.data[-1].y) == pytest.approx([25.0, 10.0])
    assert [trace.name for trace in sections[2].figure.data] == ["x", "y"]
    assert study_sections(Results(study, (0,), {})) == []
