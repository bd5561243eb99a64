"""The study's records as Markdown tables for docs/leakage.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulation.papers.leakage.setting import FULL
from simulation.papers.leakage.sums import EPSILONS, REBUILT, SOUGHT
from simulation.runs.experiment import Column, Results, cell_text

_LINKAGE: Final = (
    Column("people found, %", "found", digits=1),
    Column("found by chance, %", "chance", digits=1),
    Column("TAR at FMR 1 %, %", "tar", digits=1),
    Column("AUC", "auc", "number", 3),
    Column("AUC, names exchanged", "control_auc", "number", 3),
    Column("1 exchange in 20 exceeds", "control_auc_95", "number", 3),
)
_DRAWINGS: Final = (
    Column("taken for the person, %", "matched", digits=1),
    Column("taken for another person, %", "control", digits=1),
    Column("nearest to the person, %", "found", digits=1),
)
_REBUILT: Final = (
    Column("likeness of people rebuilt", "own", "number", 3),
    Column("of the photos that the server has", "photos", "number", 3),
    Column("of people rebuilt of another sum", "stranger", "number", 3),
)
_TRAIT: Final = (Column("AUC", "auc", "number", 3),)
_SUMS: Final = (4, 8, 16, 64)
_COHORTS: Final = (4, 16, 64, 192)
_NOISES: Final = (("clear", "in clear"), *((f"eps{e:g}", f"epsilon {e:g}") for e in EPSILONS))


@dataclass(frozen=True)
class _Line:
    """One line of a table: what it says, and the prefix of its figures in the records of a row."""

    label: str
    prefix: str


def markdown(results: Results, *, command: str) -> str:
    """Return all tables, with the command and seeds that give them again; lines that were not measured are left out."""
    seeds = ", ".join(map(str, results.seeds))
    parts = [
        f"`{command}`",
        f"Seeds {seeds} ({_people(results)}). Mean ± 95 % t-interval over seeds. TAR and FMR are those of "
        "person-to-thing comparisons; FMR 1 % is by construction what guessing would reach. "
        "*Found* counts the n best candidates of a sum over n phones.",
        "### Recognising a person\n\n"
        + _table(results, "embeddings", _LINKAGE, _revealed())
        + "\n"
        + _rows(results, "updates", _LINKAGE, _updates()),
        "### Who is in a summed second moment\n\n" + _table(results, "embeddings", _LINKAGE, _moments()),
        "### Who is in a sum of statistics\n\n" + _table(results, "statistics", _LINKAGE, _statistics()),
        "### Who is in a sum of class embeddings and of their squares\n\n"
        + _table(results, "statistics", _LINKAGE, _statistics("class_")),
        "### A trait of one phone, of a sum in which all others are known\n\n"
        + _table(results, "statistics", _TRAIT, _traits()),
        "### People rebuilt of a small sum\n\n" + _table(results, "statistics", _REBUILT, _rebuilt()),
        "### Drawing a face again from a class embedding\n\n" + _table(results, "embeddings", _DRAWINGS, _drawings()),
    ]
    failures = [f"Not measured: {f.row}, seed {f.seed}: {f.reason}" for f in results.failures]
    return "\n\n".join([*parts, *failures]) + "\n"


def _revealed() -> list[_Line]:
    return [_Line("class embedding in clear (FedFace, FedGC as published)", "revealed")]


def _updates() -> list[_Line]:
    things = [
        ("one phone's update in clear (sums not masked)", "single"),
        *((f"sum over {n} phones", f"sum{n}") for n in _SUMS),
        ("one masked upload", "masked"),
    ]
    attacks = (("matching", "matching"), ("learned inversion", "learned"))
    return [_Line(f"{thing}; {label}", f"{name}_{attack}") for thing, name in things for label, attack in attacks]


def _moments() -> list[_Line]:
    shown = (
        ("in clear", "z0"),
        ("noise z = 1", "z1"),
        ("noise z = 3", "z3"),
        ("under a pad (decision 0015, not part of rounds)", "padded"),
    )
    knowledge = (("the very template", "known"), ("other photos", "gallery"))
    return [
        _Line(f"{n} phones, {label}; attacker has {what}", f"moment{n}_{name}_{key}")
        for n in _COHORTS
        for label, name in shown
        for what, key in knowledge
    ]


def _statistics(prefix: str = "") -> list[_Line]:
    """Return the lines on the sums of each size of cohort, and on the difference of two."""
    sums = [
        _Line(f"{n} phones{whose}, {told}; server has {what}", f"{prefix}{kind}{n}_{name}_{key}")
        for n in FULL.statistics
        for kind, whose in (("sum", ""), ("drawn", f", all but {SOUGHT} drawn"))
        for name, told in _NOISES
        for what, key in (("the very addends", "known"), ("other photos", "gallery"))
    ]
    apart = [(f"two sums that differ by one phone, {told}; server has other photos", name) for name, told in _NOISES]
    return [*sums, *(_Line(label, f"{prefix}difference_{name}") for label, name in apart)]


def _traits() -> list[_Line]:
    return [_Line(f"{n} phones, {told}", f"trait{n}_{name}") for n in FULL.statistics for name, told in _NOISES]


def _rebuilt() -> list[_Line]:
    return [_Line(f"{n} phones, {told}", f"rebuilt{n}_{name}") for n in REBUILT for name, told in _NOISES]


def _drawings() -> list[_Line]:
    pictures = (
        ("a real photo, for comparison", "photo"),
        ("drawing by regression", "regression"),
        ("drawing refined through the recogniser", "refined"),
    )
    judges = (("judged by the same recogniser", "same"), ("judged by another recogniser", "second"))
    return [_Line(f"{picture}; {judge}", f"{p}_{j}") for picture, p in pictures for judge, j in judges]


def _table(results: Results, row: str, columns: tuple[Column, ...], lines: list[_Line]) -> str:
    """Return a table's heading and its lines."""
    headings = ["what the server holds; attack", *(column.label for column in columns), "comparisons a seed"]
    head = "| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|"
    return head + "\n" + _rows(results, row, columns, lines)


def _rows(results: Results, row: str, columns: tuple[Column, ...], lines: list[_Line]) -> str:
    cells = []
    for line in lines:
        found = [results.estimate(row, f"{line.prefix}_{column.metric}") for column in columns]
        if any(estimate is not None for estimate in found):
            texts = [cell_text(estimate, column) for estimate, column in zip(found, columns, strict=True)]
            cells.append("| " + " | ".join([line.label, *texts, _counts(results, row, line.prefix)]) + " |")
    return "\n".join(cells)


def _counts(results: Results, row: str, prefix: str) -> str:
    """Return the number of comparisons of a line: mated + non-mated, or people among candidates."""
    for names, text in (
        (("mated", "non_mated"), "{:.0f} + {:.0f}"),
        (("people", "candidates"), "{:.0f} of {:.0f}"),
        (("people",), "{:.0f}"),
    ):
        counts = [results.estimate(row, f"{prefix}_{name}") for name in names]
        means = [count.mean for count in counts if count is not None]
        if len(means) == len(names):
            return text.format(*means)
    return ""


def _people(results: Results) -> str:
    people = results.estimate("embeddings", "people") or results.estimate("updates", "people")
    failed = results.estimate("embeddings", "failed_images") or results.estimate("updates", "failed_images")
    if people is None or failed is None:
        return "nothing measured"
    return (
        f"{people.mean:.0f} people a seed, a third public, a third with phones; {failed.mean:.0f} images without a face"
    )
