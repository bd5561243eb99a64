"""A study as a page: its tables beside the paper's figures, its claims with their verdicts, how it was made."""

from __future__ import annotations

from simulation.report.html import Column, Facts, Outcome, Outcomes, Prose, Report, Section, Table, Tone, render
from simulation.study import Results, claim_cells, heading, table_cells
from simulation.study import Table as StudyTable

_TONES: dict[str, Tone] = {"holds": "good", "does not hold": "bad"}


def study_page(results: Results, *, command: str) -> str:
    """Return a self-contained HTML page of a study's results."""
    study = results.study
    sections: list[Section] = [Prose("What was measured", study.notes)] if study.notes else []
    if study.claims:
        sections.append(_claims(results))
    sections += [study_table(results, table, command) for table in study.tables]
    if results.failures:
        failed = tuple(f"{f.row}, seed {f.seed}: {f.reason}" for f in results.failures)
        sections.append(Prose("Not measured", failed, notice=True))
    sections.append(_provenance(results, command))
    lede = f"Figures of the paper stand beside what was measured here. Source: {study.source}." if study.source else ""
    return render(Report(study.title, lede or "What was measured.", tuple(sections)))


def _claims(results: Results) -> Outcomes:
    items = tuple(
        Outcome(text, verdict, found, _TONES.get(verdict, "plain")) for text, found, verdict in claim_cells(results)
    )
    intro = (
        "Paired differences over seeds. `Holds`: the 95 % t-interval lies above zero, or an equality is within its "
        "bound; `holds on average`: only the mean does."
    )
    return Outcomes("What the paper claims, and whether it holds here", items, intro)


def study_table(results: Results, table: StudyTable, command: str) -> Table:
    """Return a study's table, the paper's figures beside what was measured."""
    columns = (
        Column("System", numeric=False),
        *(Column(f"Paper: {name}") for name in table.paper_columns),
        *(Column(heading(column)) for column in table.columns),
        Column("Runs"),
    )
    caption = "Mean over seeds ± half of its 95 % t-interval."
    return Table(table.title, caption, columns, tuple(table_cells(results, table)), note=table.note, command=command)


def _provenance(results: Results, command: str) -> Facts:
    records = list(results.records.values())
    commits = sorted({str(record.get("commit", "unknown")) for record in records})
    seconds = sum(float(record.get("cpu_s", 0.0)) for record in records)
    return Facts(
        "How it was made",
        (
            ("Command", command),
            ("Seeds", ", ".join(map(str, results.seeds))),
            ("Runs", f"{len(records)} of {len(results.study.rows) * len(results.seeds)}"),
            ("Processor time", f"{seconds / 3600:.1f} h"),
            ("Code", ", ".join(commits) or "none"),
            ("Faces, SHA-256", results.study.data_sha256 or "not recorded"),
        ),
    )
