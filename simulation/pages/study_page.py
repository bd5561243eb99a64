"""A study as a page: its tables beside the paper's figures, its claims with their verdicts, how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mien.shell.pages import Facts, Figure, Prose, Report, Section, Table, Tile, Tiles, Tone, columns, render
from mien.shell.pages.charts import MAX_SERIES
from simulation.pages.figures import angles_figure, band_of, rounds_chart, weights_chart
from simulation.pages.run_page import worse_notice
from simulation.runs.experiment import Results, Row, claim_cells, heading, table_cells
from simulation.runs.experiment import Table as StudyTable

_TONES: dict[str, Tone] = {"holds": "good", "does not hold": "bad"}


def study_page(results: Results, *, command: str) -> str:
    """Return a self-contained HTML page of a study's results."""
    study = results.experiment
    sections: list[Section] = [Prose("measured", "What was measured", study.notes)] if study.notes else []
    if study.claims:
        sections.append(_claims(results))
    sections += worse_notice(results.harmed())
    sections += study_tables(results, command)
    sections += study_sections(results)
    if results.failures:
        failed = tuple(f"{f.row}, seed {f.seed}: {f.reason}" for f in results.failures)
        sections.append(Prose("failed", "Not measured", failed, is_notice=True))
    sections.append(_provenance(results, command))
    lede = f"Figures of the paper stand beside what was measured here. Source: {study.source}." if study.source else ""
    return render(Report(study.title, lede or "What was measured.", tuple(sections)))


def _claims(results: Results) -> Tiles:
    items = tuple(
        Tile(text, verdict, found, _TONES.get(verdict, "plain")) for text, found, verdict in claim_cells(results)
    )
    intro = (
        "Paired differences over seeds. `Holds`: the 95 % t-interval lies above zero, or an equality is within its "
        "bound; `holds on average`: only the mean does."
    )
    return Tiles("claims", "What the paper claims, and whether it holds here", items, intro)


def study_tables(results: Results, command: str) -> list[Table]:
    """Return a study's tables, the paper's figures beside what was measured."""
    return [_table(f"table-{n}", results, table, command) for n, table in enumerate(results.experiment.tables, 1)]


def _table(anchor: str, results: Results, table: StudyTable, command: str) -> Table:
    paper, measured = (f"#Paper: {name}" for name in table.paper_columns), (f"#{heading(c)}" for c in table.columns)
    caption, cells = "Mean over seeds ± half of its 95 % t-interval.", tuple(table_cells(results, table))
    heads = columns("System", *paper, *measured, "#Runs")
    return Table(anchor, table.title, caption, heads, cells, note=table.note, command=command)


def study_sections(results: Results) -> list[Section]:
    """Return the figures of what a study's records hold beside numbers: traces, angles and weightings."""
    rows = [
        row for row in results.experiment.rows if any((row.name, seed) in results.records for seed in results.seeds)
    ]
    return [*_traces(results, rows), *_angles(results, rows), *_weights(results, rows)]


def _of(results: Results, row: Row, metric: str) -> list[Any]:
    """Return a row's records of a metric, one a seed, where there are any."""
    found = (results.records.get((row.name, seed), {}).get("metrics", {}).get(metric) for seed in results.seeds)
    return [value for value in found if value]


def _traces(results: Results, rows: Sequence[Row]) -> list[Section]:
    held = [(row, traces) for row in rows if (traces := _of(results, row, "trace"))][:MAX_SERIES]
    bands = [band_of(row.label, [dict(trace) for trace in traces]) for row, traces in held]
    if not any(band.x for band in bands):
        return []
    chart = rounds_chart(bands, title="Equal error rate")
    caption = "On validation people. Means over seeds; the bands are 95 % t-intervals."
    described = f"Equal error rate by round of {len(bands)} systems."
    return [Figure("eer", "Error by round", (chart,), caption, described)]


def _angles(results: Results, rows: Sequence[Row]) -> list[Section]:
    held = [(row, found) for row in rows if (found := _of(results, row, "angles"))][:MAX_SERIES]
    if not held:
        return []
    records: dict[str, list[Any]] = {}
    for row, found in held:
        records[f"{row.label} ({row.name})" if row.label in records else row.label] = found
    return [angles_figure(records, "of all seeds together (FedGC, Figure 3).")]


def _weights(results: Results, rows: Sequence[Row]) -> list[Section]:
    for row in rows:
        found = _of(results, row, "weights")
        if found and len(found[0][0][1]) <= MAX_SERIES:
            weights = {
                client: [(int(number), shares[client]) for number, shares in found[0]] for client in found[0][0][1]
            }
            caption = f"{row.label}, seed {results.seeds[0]}: each party's share of the weighting (Figure 6)."
            described = "Each party's weight by round."
            return [Figure("weights", "Weighting by round", (weights_chart(weights),), caption, described)]
    return []


def _provenance(results: Results, command: str) -> Facts:
    records = list(results.records.values())
    commits = sorted({str(record.get("commit", "unknown")) for record in records})
    seconds = sum(float(record.get("cpu_s", 0.0)) for record in records)
    return Facts(
        "made",
        "How it was made",
        (
            ("Command", command),
            ("Seeds", ", ".join(map(str, results.seeds))),
            ("Runs", f"{len(records)} of {len(results.experiment.rows) * len(results.seeds)}"),
            ("Processor time", f"{seconds / 3600:.1f} h"),
            ("Code", ", ".join(commits) or "none"),
            ("Faces, SHA-256", results.experiment.data_sha256 or "not recorded"),
        ),
    )
