"""Which form of spread-out is the default: the rule, applied to the records of a study, as Markdown and as a page.

    python -m simulation.papers.spreadout.choice --out out/reproduce

The rule: the private form with the lowest EER on the phones' side, among those within 1 point of the exact form's that
cost the old population no more, and that show nothing besides sums of updates. A form that sums second moments shows a
little more and is off by default (decision record 0015): it is chosen only where no other qualifies, and named where it
does better. Differences are paired over seeds. Where no private form is that near, none is chosen, and the table says
how far each came. Read the outcome beside the study's control: what training on public people alone gains is no merit
of any form.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mien.errors import MienError
from mien.shell import cli
from mien.shell.files import write_atomically
from mien.shell.pages import Column, Prose, Report, Table, render
from simulation.papers.spreadout import NAME
from simulation.program.reproduce import OUT
from simulation.runs.experiment import Estimate, Results
from simulation.runs.reproduced import read

BOUND: Final = 0.01
"""One point of EER."""

FORMS: Final = {
    "FedFace": ("exact", ("public", "softmax_moment", "hinge_public", "moment", "moment_public", "moment_dp")),
    "FedGC": ("fedgc_exact", ("fedgc_public", "fedgc_moment", "fedgc_both")),
}
WITH_MOMENTS: Final = frozenset(
    {"softmax_moment", "moment", "moment_public", "moment_dp", "fedgc_moment", "fedgc_both"}
)
"""Forms that a task has to name in `privacy.reveals`."""

COST: Final = "old_eer"
GAIN: Final = "test_eer"
HEADINGS: Final = ("form", "EER, %", "minus exact, points", "EER of the old population minus exact, points", "verdict")


@dataclass(frozen=True)
class Judged:
    """A private form beside the exact one: how far its EER lies above, on either side, and whether it qualifies."""

    row: str
    label: str
    eer: float
    above_exact: Estimate
    cost_above_exact: Estimate

    @property
    def sums_moments(self) -> bool:
        """True if its devices sum second moments of class embeddings."""
        return self.row in WITH_MOMENTS

    @property
    def qualifies(self) -> bool:
        """True if it is within a point of the exact form and costs the old population no more.

        "No more" allows for chance: the cost counts if the interval of the paired difference lies above 0, or without
        an interval, if the difference exceeds a point.
        """
        cost = self.cost_above_exact
        costs_more = cost.low > 0 if cost.low is not None else cost.mean > BOUND
        return self.above_exact.mean <= BOUND and not costs_more


def judge(results: Results, exact: str, forms: Sequence[str]) -> list[Judged]:
    """Return the forms that were measured beside the exact one, the best first."""
    labels = {row.name: row.label for row in results.experiment.rows}
    found = []
    for row in forms:
        eer = results.estimate(row, GAIN)
        above, cost = results.difference(row, exact, GAIN), results.difference(row, exact, COST)
        if eer is not None and above is not None and cost is not None:
            found.append(Judged(row, labels[row], eer.mean, above, cost))
    return sorted(found, key=lambda form: form.eer)


def choose(judged: Sequence[Judged]) -> Judged | None:
    """Return the best form that qualifies, those without moments first; None where none does."""
    able = sorted((form for form in judged if form.qualifies), key=lambda form: (form.sums_moments, form.eer))
    return able[0] if able else None


def sentence(method: str, judged: Sequence[Judged]) -> str:
    """Return the rule's outcome in words."""
    if not judged:
        return f"{method}: not measured."
    chosen = choose(judged)
    if chosen is not None:
        text = f"{method}: {chosen.label} is chosen ({_points(chosen.above_exact)} points from the exact form)."
        best = next(form for form in judged if form.qualifies)
        if best is chosen:
            return text
        return f"{text} With moments, which a task has to name, {best.label} comes to {_points(best.above_exact)}."
    nearest = min(judged, key=lambda form: form.above_exact.mean)
    return (
        f"{method}: no private form qualifies; nearest is {nearest.label}, {_points(nearest.above_exact)} points away."
    )


def cells(judged: Sequence[Judged]) -> list[tuple[str, ...]]:
    """Return the table's cells, one row a form."""
    chosen = choose(judged)
    rows = list[tuple[str, ...]]()
    for form in judged:
        verdict = "chosen" if form is chosen else "qualifies" if form.qualifies else "does not qualify"
        numbers = (f"{form.eer * 100:.2f}", _points(form.above_exact), _points(form.cost_above_exact))
        rows.append((form.label, *numbers, verdict))
    return rows


def markdown(results: Results) -> str:
    """Return the choice of every method as Markdown."""
    lines = [f"## {results.experiment.title}: the choice", ""]
    for method, (exact, forms) in FORMS.items():
        judged = judge(results, exact, forms)
        lines += [sentence(method, judged), "", "| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
        lines += [*("| " + " | ".join(row) + " |" for row in cells(judged)), ""]
    return "\n".join(lines)


def page(results: Results, command: str) -> str:
    """Return the same as a self-contained page."""
    columns = tuple(Column(heading, numeric=0 < i < 4) for i, heading in enumerate(HEADINGS))
    judged = {method: judge(results, exact, forms) for method, (exact, forms) in FORMS.items()}
    tables = [
        Table(
            method.lower(),
            method,
            "Paired differences over seeds ± half of the 95 % t-interval.",
            columns,
            tuple(cells(rows)),
        )
        for method, rows in judged.items()
    ]
    outcome = Prose("outcome", "Outcome", tuple(sentence(method, rows) for method, rows in judged.items()))
    title = f"{results.experiment.title}: the choice"
    return render(Report(title, f"From the records of `{command}`.", (outcome, *tables)))


def _points(found: Estimate) -> str:
    text = f"{found.mean * 100:+.2f}"
    return text if found.high is None else f"{text} ± {(found.high - found.mean) * 100:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Apply the rule to a study's records; write `choice.md` and `choice.html` beside them and print the former."""
    parser = argparse.ArgumentParser(
        prog="python -m simulation.papers.spreadout.choice",
        description="Which private form of spread-out is the default, by the records of the spread-out study.",
        epilog="Example: python -m simulation.papers.spreadout.choice --out out/reproduce",
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where the study's records lie, without /spreadout")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    args = parser.parse_args(arguments)
    folder = args.out / NAME
    try:
        results, options = read(folder)
        text = markdown(results)
        write_atomically(folder / "choice.md", text.encode())
        write_atomically(folder / "choice.html", page(results, options.command).encode())
    except MienError as error:
        cli.fail(error, as_json=args.json)
    chosen = {method: choose(judge(results, exact, forms)) for method, (exact, forms) in FORMS.items()}
    cli.emit(
        {"choice": {method: form.row if form else None for method, form in chosen.items()}},
        as_json=args.json,
        human=lambda: cli.OUT.print(text, markup=False, highlight=False, soft_wrap=True),
    )


if __name__ == "__main__":
    main()
