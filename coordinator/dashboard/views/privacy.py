"""The privacy budget: what each population has spent, by which sums, and what caps one phone's part."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.dashboard.views.common import listed
from coordinator.dashboard.words import short
from coordinator.store.report import BudgetReport, PopulationReport, TaskReport
from mien.format import count, percent, several
from mien.shell.pages import (
    NOTHING,
    Bar,
    Cell,
    Cells,
    Chart,
    Columns,
    Empty,
    Figure,
    Page,
    Prose,
    Section,
    Series,
    Table,
    charts,
    columns,
)

_NEAR = 0.8
_MAX_POINTS = 300


def privacy_page(reports: Sequence[PopulationReport]) -> Page:
    """Return the page of all populations' spent budgets."""
    lede = (
        "Every sum that was opened stands in a ledger, a hash chain for each population. With differential privacy the "
        "ledger stops a task before its budget is exceeded."
    )
    if not reports:
        told = "No sum was opened yet, so nothing was spent."
        return Page("privacy", "Privacy budget", lede,
                    (Empty("ledger", "Ledger", told, ("mien-coordinator task submit spring.toml",)),))  # fmt: skip
    sections: list[Section] = [_populations(reports), _budgets(reports)]
    figures = [figure for index, report in enumerate(reports) if (figure := _spent(index, report)) is not None]
    if figures:
        sections.append(Columns("spending", "How it was spent", tuple(figures)))
    sections.append(_tasks(reports))
    sections += _guarantees(reports)
    commands = ("mien-coordinator privacy report",)
    return Page("privacy", "Privacy budget", lede, tuple(sections), commands=commands)


def _populations(reports: Sequence[PopulationReport]) -> Table:
    rows = tuple(
        (
            each.population,
            Cell("verified", tone="good") if each.verifies else Cell("does not hold", tone="bad", note=each.problem),
            count(each.num_sums),
            count(each.num_sums_without_noise),
            Cell(count(each.num_rounds_without_event), tone="warn" if each.num_rounds_without_event else None),
            Cell(short(each.head), is_code=True) if each.head else NOTHING,
        )
        for each in reports
    )
    heads = columns("Population", "Ledger", "#Sums opened", "#Without noise", "#Rounds without event", "Newest hash")
    return Table("ledger", "Ledger", "The ledger of each population", heads, rows)


def _budgets(reports: Sequence[PopulationReport]) -> Section:
    rows = ((each.population, *_budget(budget)) for each in reports for budget in each.budgets)
    nothing = "No task promised differential privacy, so there is no budget: a sum may tell something of one phone."
    heads = columns("Population", "Spent of the budget", "#ε spent", "#ε budget", "#δ", "#ε, tighter (PLD)",
                    "#ε, replacing")  # fmt: skip
    note = "ε by Rényi accounting is what the ledger enforces. Against replacing a phone's data it is larger."
    caption = "Budgets in force and what is spent of them"
    return listed("budgets", "Budgets", caption, heads, rows, nothing, note=note)


def _budget(budget: BudgetReport) -> Cells:
    spent, end = budget.spent_rdp, (f"{budget.epsilon:g}", f"{budget.delta:g}")
    if spent is None:
        return Cell("unbounded: a sum had no noise", tone="bad"), "∞", *end, NOTHING, NOTHING
    share = spent / budget.epsilon if budget.epsilon else 1.0
    tone = "warn" if share >= _NEAR else "good"
    pld = NOTHING if budget.spent_pld is None else Cell(f"{budget.spent_pld:.2f}")
    replaced = NOTHING if budget.epsilon_replace is None else Cell(f"{budget.epsilon_replace:.2f}")
    return (
        Cell(percent(share, 0), bar=Bar(min(share, 1.0), tone=tone)),  # type: ignore[arg-type]
        f"{spent:.2f}",
        *end,
        pld,
        replaced,
    )


def _spent(index: int, report: PopulationReport) -> Figure | None:
    """Return epsilon over a population's sums, beside its budget."""
    sums = [each for task in report.tasks for each in task.sums if each["epsilon_after"] is not None]
    if len(sums) < 2 or not report.budgets:  # one point is no course
        return None
    sums = sorted(sums, key=lambda each: each["epsilon_after"])[-_MAX_POINTS:]
    budget = report.budgets[-1].epsilon
    spent = Series("spent", tuple((float(n), float(s["epsilon_after"])) for n, s in enumerate(sums, 1)))
    guide = Series("budget", ((1.0, budget), (float(len(sums)), budget)), is_guide=True)
    x = charts.whole_numbers(1, len(sums))
    y = charts.linear([budget, *(b for _, b in spent.points)], zero=True)
    rows = tuple(
        (
            str(n),
            f"{each['round']}/{each['attempt']}",
            count(each["devices"]),
            f"{each['epsilon_before']:.3f}",
            f"{each['epsilon_after']:.3f}",
        )
        for n, each in enumerate(sums, 1)
    )
    heads = columns("Sum", "Round/attempt", "#Phones", "#ε before", "#ε after")
    return Figure(
        f"spent-{index + 1}", f"ε of {report.population}",
        (Chart((spent, guide), x, y, "sum", "ε"),),
        f"The dashed line is the budget, ε {budget:g}.",
        f"ε grew to {spent.points[-1][1]:.2f} of {budget:g} over {several(len(sums), 'sum')}.",
        Table(f"spent-{index + 1}-table", "By sum", f"What each sum cost population {report.population}", heads, rows),
    )  # fmt: skip


def _tasks(reports: Sequence[PopulationReport]) -> Section:
    rows = ((each.population, *_task(task)) for each in reports for task in each.tasks)
    heads = columns("Population", "Task", "Noise", "#Sums", "#ε by itself", "#One phone was in", "#Cap")
    note = "A phone is in at most so many of a task's sums as its cap says: the coordinator and the phone both count."
    nothing = "No task has opened a sum."
    return listed("tasks", "By task", "What each task's sums cost", heads, rows, nothing, note=note)


def _task(task: TaskReport) -> Cells:
    noised = task.mechanism != "none"
    return (
        Cell(task.name, href=f"/tasks/{task.task_id}"),
        Cell(task.mechanism.replace("_", " "), note=f"z {task.noise_multiplier:g}" if noised else ""),
        count(len(task.sums)),
        NOTHING if task.epsilon is None else Cell(f"{task.epsilon:.2f}", note=f"δ {task.delta:g}"),
        f"at most {count(task.most_participations)}" if noised else NOTHING,
        count(task.max_participations) if noised else NOTHING,
    )


def _guarantees(reports: Sequence[PopulationReport]) -> list[Section]:
    return [
        Prose(f"guarantee-{short(task.task_id)}", f"What {task.name} promises", task.guarantee, is_list=True)
        for report in reports
        for task in report.tasks
        if task.mechanism != "none"
    ]
