"""FedFR-UDA on a laptop: Tables 2 to 5 and Figures 4 to 6, from a labelled domain of faces to an unlabelled one.

Source: Zhuang et al., "Towards Unsupervised Domain Adaptation for Deep Face Recognition under Privacy Constraints via
Federated Learning" (2021). Benchmark S has as many source as target people, L ten times as many; the paper's domains
are Caucasian and African faces, ours are those of the synthetic faces (`<domain>_<id>`), nobody's. A folder that holds
`celeba112` and `bollywood112` gives one benchmark of real faces instead (research, non-commercial use).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from mien.records import parse_toml
from simulation.faces.datasets import dataset_of
from simulation.papers.fedfr_uda.faces import prepared
from simulation.papers.fedfr_uda.run import measure
from simulation.runs.experiment import Claim, Column, Experiment, Row, Table

TITLE: Final = "FedFR-UDA: from a labelled domain to an unlabelled one"
SOURCE: Final = (
    "Zhuang et al.: Towards Unsupervised Domain Adaptation for Deep Face Recognition under Privacy Constraints via "
    "Federated Learning (2021)"
)

Settings = dict[str, Any]
DATA: Final = parse_toml(Path(__file__).with_name("benchmarks.toml").read_text(encoding="utf-8"), "benchmarks.toml")
LABELS: Final[Mapping[str, str]] = DATA["labels"]


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    folder, real = prepared(faces)
    small = {**(DATA["quick"] if quick else {}), **(DATA["quick_real"] if quick and real else {})}
    names = {"s": "real"} if real else {"s": "s"} if quick else {"s": "s", "l": "l"}
    benchmarks = {name: {**DATA["shared"], **DATA["settings"][of], **small} for name, of in names.items()}
    tables, claims = list[Table](), list[Claim]()
    for name, scale in benchmarks.items():
        where = "real" if real else name.upper()
        own = [_table(table, name, scale, where, real=real) for table in DATA["tables"]]
        tables += own
        rows = {row.name for table in own for row in table.rows}
        claims += [claim for claim in _claims(name, scale, where) if {claim.greater, claim.lesser} <= rows]
    notes = tuple(DATA["notes"])
    return Experiment("fedfr_uda", TITLE, measure, tuple(tables), tuple(claims), SOURCE, notes, dataset_of(folder))


def _table(table: Settings, name: str, scale: Settings, where: str, *, real: bool) -> Table:
    """Return one table of a benchmark; real faces have no figures of the paper's beside theirs."""
    paper = DATA["paper"][name][table["paper"]] if "paper" in table and not real else {}
    # One target alone is no federation, and has no row without the source.
    systems = [system for system in table["rows"] if system != "no_source" or scale["clients"] > 1]
    rows = [
        Row(f"{name}_{system}", LABELS[system], {**scale, "system": system}, tuple(paper.get(system, ())))
        for system in systems
    ]
    if field := table.get("sweep"):
        letter, values = SWEEPS[field](scale)
        swept = [
            Row(f"{name}_{letter}{n}", f"{letter.upper()} = {n}", {**scale, "system": "fl", field: n}) for n in values
        ]
        rows = swept + rows
    groups = [DATA["columns"][group] if isinstance(group, str) else [group] for group in table["columns"]]
    return Table(
        f"{table['title']} ({'real faces' if real else where})",
        tuple(rows),
        tuple(Column(*column) for group in groups for column in group),
        tuple(table.get("paper_columns", ())) if not real else (),
        table.get("note", "").format_map(scale),
    )


def sweep_of(scale: Settings) -> list[int]:
    """Return the numbers of local iterations that are tried beside the benchmark's own, ascending."""
    tried = {scale["steps"] // 8, scale["steps"] // 2, scale["steps"]}
    return sorted(tried - {0, scale["local_steps"]})


SWEEPS: Final[Mapping[str, Callable[[Settings], tuple[str, list[int]]]]] = {
    "local_steps": lambda scale: ("e", sweep_of(scale)),
    "clients": lambda scale: ("k", [number for number in (1, 2, 4, 6) if number != scale["clients"]]),
}
"""Of a swept field: the letter that begins its rows' names, and the values beside the benchmark's own."""


def _claims(name: str, scale: Settings, where: str) -> list[Claim]:
    """Return what the paper claims of a benchmark, S's claims for real faces."""
    most = {"most": f"e{sweep_of(scale)[-1]}"}
    return [
        Claim(f"{where}: {text}", f"{name}_{most.get(greater, greater)}", f"{name}_{most.get(lesser, lesser)}", *rest)
        for text, greater, lesser, *rest in (*DATA["claims"]["shared"], *DATA["claims"][name])
    ]


__all__ = ["measure", "study"]
