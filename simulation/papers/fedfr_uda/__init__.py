"""FedFR-UDA on a laptop: Tables 2 to 5 and Figures 4 to 6, from a labelled domain of faces to an unlabelled one.

Source: Zhuang et al., "Towards Unsupervised Domain Adaptation for Deep Face Recognition under Privacy Constraints via
Federated Learning" (2021). Benchmark S has as many source as target people, L ten times as many; the paper's domains
are Caucasian and African faces, ours are those of the synthetic faces (`<domain>_<id>`), nobody's. Benchmarks of real
faces are in `simulation.papers.fedfr_uda_real`, by the same code from a file of the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mien.records import parse_toml
from simulation.faces.datasets import dataset_of
from simulation.papers.fedfr_uda.run import measure
from simulation.runs.experiment import Claim, Column, Experiment, Row, Table
from simulation.runs.tables import claim_of, settings_of

BENCHMARKS: Final = Path(__file__).with_name("benchmarks.toml")
NO_OTHERS: Final[Mapping[str, str]] = MappingProxyType({})
Settings = dict[str, Any]


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return benchmarks_of(BENCHMARKS, quick=quick, data_sha256=dataset_of(faces))


def benchmarks_of(path: Path, *, quick: bool, data_sha256: str, domains: Mapping[str, str] = NO_OTHERS) -> Experiment:
    """Return the study that a file of benchmarks describes, named as the file's folder; `domains` stand for others.

    A table's rows are systems; `changes` say what else a row changes, and its system where it has another name. A
    benchmark's own `tables` are the numbers of those that it has, by default all, and it is `without` the rows named
    so. A claim on a row that a benchmark lacks is left out; so are benchmarks that the toy scale does not name, and
    there no row's field is above the one in `quick_most`. Claims `under` a name are asked once more, of other rows.
    """
    data = parse_toml(path.read_text(encoding="utf-8"), path.name)
    tables, claims = list[Table](), list[Claim]()
    for name, own in data["settings"].items():
        if quick and name not in data["quick_benchmarks"]:
            continue
        shown = data.get("shown", {}).get(name, {})
        numbers = shown.get("tables", range(len(data["tables"])))
        scale = {**data["shared"], **own, **(data["quick"] if quick else {})}
        scale["source"] = [domains.get(domain, domain) for domain in scale["source"]]
        scale["target"] = domains.get(scale["target"], scale["target"])
        where = shown.get("where", name.upper())
        made = [_table(data, data["tables"][number], name, scale, where, quick=quick) for number in numbers]
        tables += made
        rows = {row.name for table in made for row in table.rows}
        claims += [claim for claim in _claims(data, name, scale, where) if claim.rows <= rows]
    return Experiment(
        path.parent.name,
        data["title"],
        measure,
        tuple(tables),
        tuple(claims),
        data["source"],
        tuple(data["notes"]),
        data_sha256,
        settings=settings_of({"setting": data["setting"], "settings": data["asked_in"]}),
    )


def _table(data: Mapping[str, Any], table: Settings, name: str, scale: Settings, where: str, *, quick: bool) -> Table:
    """Return one table of a benchmark."""
    most = data.get("quick_most", {}) if quick else {}
    paper = data["paper"][name][table["paper"]] if "paper" in table else {}
    # One target alone is no federation, and has no row without the source.
    left_out = data.get("shown", {}).get(name, {}).get("without", ())
    systems = [
        system
        for system in table["rows"]
        if system not in left_out and (not system.startswith("no_source") or scale["clients"] > 1)
    ]
    rows = [
        Row(
            f"{name}_{system}",
            data["labels"][system],
            _at_most(most, {**scale, "system": system, **data.get("changes", {}).get(system, {})}),
            tuple(paper.get(system, ())),
        )
        for system in systems
    ]
    if field := table.get("sweep"):
        letter, values = SWEEPS[field](scale)
        swept = [
            Row(f"{name}_{letter}{n}", f"{letter.upper()} = {n}", {**scale, "system": "fl", field: n}) for n in values
        ]
        rows = swept + rows
    groups = [data["columns"][group] if isinstance(group, str) else [group] for group in table["columns"]]
    return Table(
        f"{table['title']} ({where})",
        tuple(rows),
        tuple(Column(*column) for group in groups for column in group),
        tuple(table.get("paper_columns", ())),
        table.get("note", "").format_map(scale),
    )


def _at_most(most: Mapping[str, Any], settings: Settings) -> Settings:
    """Return the settings, what `most` limits lowered to it."""
    return {field: min(value, most[field]) if field in most else value for field, value in settings.items()}


def sweep_of(scale: Settings) -> list[int]:
    """Return the numbers of local iterations that are tried beside the benchmark's own, ascending."""
    tried = {scale["steps"] // 8, scale["steps"] // 2, scale["steps"]}
    return sorted(tried - {0, scale["local_steps"]})


SWEEPS: Final[Mapping[str, Callable[[Settings], tuple[str, list[int]]]]] = {
    "local_steps": lambda scale: ("e", sweep_of(scale)),
    "clients": lambda scale: ("k", [number for number in (1, 2, 4, 6) if number != scale["clients"]]),
}
"""Of a swept field: the letter that begins its rows' names, and the values beside the benchmark's own."""


def _claims(data: Mapping[str, Any], name: str, scale: Settings, where: str) -> list[Claim]:
    """Return what the paper claims of a benchmark."""
    most = {"most": f"e{sweep_of(scale)[-1]}"}
    claims = data["claims"]
    asked = [(where, claims), *((f"{where}, {under}", some) for under, some in claims.get("under", {}).items())]
    told = [(at, claim) for at, some in asked for claim in (*some["shared"], *some.get(name, ()))]
    return [
        claim_of([f"{at}: {text}", f"{name}_{most.get(greater, greater)}", f"{name}_{most.get(lesser, lesser)}", *rest])
        for at, (text, greater, lesser, *rest) in told
    ]


__all__ = ["BENCHMARKS", "benchmarks_of", "measure", "study"]
