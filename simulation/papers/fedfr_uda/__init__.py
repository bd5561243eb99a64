"""FedFR-UDA on a laptop: Tables 2 to 5 and Figures 4 to 6, from a labelled domain of faces to an unlabelled one.

Source: Zhuang et al., "Towards Unsupervised Domain Adaptation for Deep Face Recognition under Privacy Constraints via
Federated Learning" (2021). Benchmark S has as many source as target people, L ten times as many; the paper's domains
are Caucasian and African faces, ours are those of the synthetic faces (`<domain>_<id>`), nobody's. A folder that holds
`celeba112` and `bollywood112` gives one benchmark of real faces instead (research, non-commercial use).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

COLUMNS: Final = (
    Column("target accuracy", "target_accuracy"),
    Column("TAR at FMR 0.1", "target_tar_1e-1"),
    Column("TAR at FMR 0.01", "target_tar_1e-2"),
    Column("TAR at FMR 0.001", "target_tar_1e-3"),
    Column("rank 1", "target_rank1"),
)
DOMAINS: Final = (
    Column("target accuracy", "target_accuracy"),
    Column("target rank 1", "target_rank1"),
    Column("source accuracy", "source_accuracy"),
    Column("source rank 1", "source_rank1"),
)
CLUSTERS: Final = (
    Column("F-score", "f_score"),
    Column("BCubed F", "bcubed"),
    Column("NMI", "nmi"),
    Column("clusters", "clusters", "integer"),
    *DOMAINS[:2],
)


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    folder, real = prepared(faces)
    small = {**(DATA["quick"] if quick else {}), **(DATA["quick_real"] if quick and real else {})}
    names = {"s": "real"} if real else {"s": "s"} if quick else {"s": "s", "l": "l"}
    benchmarks = {name: {**DATA["shared"], **DATA["settings"][of], **small} for name, of in names.items()}
    tables = tuple(table for name, scale in benchmarks.items() for table in _tables(name, scale, real=real))
    claims = tuple(claim for name, scale in benchmarks.items() for claim in _claims(name, scale, real=real))
    notes = tuple(DATA["notes"])
    return Experiment("fedfr_uda", TITLE, measure, tables, claims, SOURCE, notes, dataset_of(folder))


def _tables(name: str, scale: Settings, *, real: bool) -> tuple[Table, ...]:
    where = "real faces" if real else name.upper()
    nothing: Mapping[str, Sequence[str]] = {}
    tables = ("systems", "clustering", "ablation")
    paper_2, paper_4, paper_5 = (nothing if real else DATA["paper"][name][table] for table in tables)

    def row(system: str, paper: Mapping[str, Sequence[str]], **changes: Any) -> Row:
        return Row(
            f"{name}_{system}", LABELS[system], {**scale, "system": system, **changes}, tuple(paper.get(system, ()))
        )

    def local_steps(steps: int) -> Row:
        return Row(f"{name}_e{steps}", f"E = {steps}", {**scale, "system": "fl", "local_steps": steps})

    def clients(number: int) -> Row:
        return Row(f"{name}_k{number}", f"K = {number}", {**scale, "system": "fl", "clients": number})

    return (
        Table(
            f"Tables 2 and 3: systems ({where})",
            tuple(row(system, paper_2) for system in DATA["paper"]["s"]["systems"]),
            DOMAINS,
            () if real else ("African ver.", "African id.", "Caucasian ver.", "Caucasian id."),
        ),
        Table(
            f"Table 4: clustering ({where})",
            tuple(row(system, paper_4) for system in ("dbscan", "kmeans", "finch", "fl")),
            CLUSTERS,
            () if real else ("F-score", "African ver.", "African id."),
        ),
        Table(
            f"Table 5: ablation ({where})",
            tuple(row(system, paper_5) for system in ("source_only", "fine_tune", "fl", "dcl")),
            COLUMNS,
            () if real else ("Acc", "TAR 0.1", "TAR 0.01", "TAR 0.001", "rank 1"),
        ),
        Table(
            f"Figure 4: local iterations E ({where})",
            (
                *(local_steps(e) for e in sweep_of(scale)),
                row("fl", {}),
            ),
            DOMAINS,
            note=f"The last row has E = {scale['local_steps']}; all take {scale['steps']} iterations.",
        ),
        Table(
            f"Figure 5: target clients K ({where})",
            (*(clients(k) for k in (1, 2, 4, 6) if k != scale["clients"]), row("fl", {})),
            (Column("F-score", "f_score"), *DOMAINS),
            note=f"The last row has K = {scale['clients']}.",
        ),
        Table(
            f"Figure 6: forgetting ({where})",
            tuple(row(system, {}) for system in ("source_only", "fine_tune", *_without_source(scale), "fl", "dcl")),
            (*DOMAINS, Column("source TAR at FMR 0.001", "source_tar_1e-3")),
        ),
    )


def _without_source(scale: Settings) -> tuple[str, ...]:
    """Return the row of targets that train without the source; one alone is no federation."""
    return ("no_source",) if scale["clients"] > 1 else ()


def sweep_of(scale: Settings) -> list[int]:
    """Return the numbers of local iterations that are tried beside the benchmark's own, ascending."""
    tried = {scale["steps"] // 8, scale["steps"] // 2, scale["steps"]}
    return sorted(tried - {0, scale["local_steps"]})


def _claims(name: str, scale: Settings, *, real: bool) -> tuple[Claim, ...]:
    """Return what the paper claims of a benchmark, S's claims for real faces."""
    where = "real" if real else name.upper()

    def claim(text: str, greater: str, lesser: str, metric: str, within: float | None = None) -> Claim:
        return Claim(f"{where}: {text}", f"{name}_{greater}", f"{name}_{lesser}", metric, within)

    target, source = "target_accuracy", "source_accuracy"
    shared = (
        claim("C-FINCH clusters better than DBSCAN", "fl", "dbscan", "f_score"),
        claim("C-FINCH clusters better than K-means", "fl", "kmeans", "f_score"),
        claim("C-FINCH clusters better than FINCH", "fl", "finch", "f_score"),
        claim("the model that C-FINCH's labels train is better than FINCH's", "fl", "finch", target),
        claim("fine-tuning on clusters gains on the target", "fine_tune", "source_only", target),
        claim("federated rounds gain more", "fl", "fine_tune", target),
        claim("DCL gains more still", "dcl", "fl", target),
        claim("FedFR does better on the target than DAN", "dcl", "dan", target),
        claim("FedFR does better on the target than DANN", "dcl", "dann", target),
        claim("fine-tuning forgets the source", "source_only", "fine_tune", source),
        claim("FedFR forgets less than fine-tuning", "dcl", "fine_tune", source),
        *(claim("without the source the target loses", "fl", each, target) for each in _without_source(scale)),
        *(claim("without the source the source is forgotten", "fl", each, source) for each in _without_source(scale)),
    )
    most = f"e{sweep_of(scale)[-1]}"
    if name == "l":
        return (
            *shared,
            claim("FedFR does better on the target than merging", "dcl", "merge", target),
            claim("fewer, longer rounds cost little (within 2 points)", "fl", most, target, 0.02),
            claim("6 target clients lose little against 1 (within 2 points)", "fl", "k6", target, 0.02),
        )
    return (
        *shared,
        claim("merging with true labels is the upper bound", "merge", "dcl", target),
        claim("fewer, longer rounds cost accuracy", "fl", most, target),
        claim("6 target clients do better than 1", "k6", "k1", target),
    )


__all__ = ["measure", "study"]
