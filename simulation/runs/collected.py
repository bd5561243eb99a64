"""The runs that a folder holds, whatever wrote it: one run, a sweep's, or a reproduction's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mien.errors import NotFoundError
from simulation.runs import reproduced
from simulation.runs.grid import STATE, read_sweep, run_name
from simulation.runs.records import RUN, RunFolder

_ROUND_FIGURES: Final = ("clients", "weight", "loss_before", "loss_after", "eer", "staleness", "cpu_s", "wall_s")


@dataclass(frozen=True)
class CollectedRun:
    """A run's name, seed and parameters, its records by round, and its figures at the end (empty before it)."""

    name: str
    label: str
    seed: int
    parameters: Mapping[str, Any]
    rounds: tuple[Mapping[str, Any], ...] = field(repr=False)
    figures: Mapping[str, float]
    evaluation: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def values(self) -> Iterator[tuple[int | None, str, float]]:
        """Yield (round, metric, value) of everything that was measured; figures of the end have no round."""
        for record in self.rounds:
            for name in _ROUND_FIGURES:
                if name in record:
                    yield int(record["round"]), name, float(record[name])
        for name, value in self.figures.items():
            yield None, name, float(value)


def collect(folder: Path) -> list[CollectedRun]:
    """Return the runs in a folder of mien-sim run, sweep or reproduce; raises NotFoundError where there are none."""
    if (folder / STATE).is_file():
        found = _of_sweep(folder)
    elif (folder / reproduced.STATE).is_file():
        found = _of_study(folder)
    elif (folder / RUN).is_file():
        spec = RunFolder(folder).spec()
        found = [_run(folder, spec.name, spec.name, spec.partition.seed, {})]
    else:
        raise NotFoundError(f"{folder} holds no records; name a folder of mien-sim run, sweep or reproduce")
    if not found:
        raise NotFoundError(f"{folder} holds no finished round yet; go on with the command that began it")
    return found


def _of_sweep(folder: Path) -> list[CollectedRun]:
    sweep = read_sweep(folder)[0].experiment
    runs = []
    for row in sweep.rows:
        for seed in sweep.seeds:
            place = folder / "runs" / run_name(row.name, seed)
            if (place / RUN).is_file():
                runs.append(_run(place, row.name, row.label, seed, row.settings["changes"]))
    return runs


def _of_study(folder: Path) -> list[CollectedRun]:
    results, _ = reproduced.read(folder)
    labels = {row.name: row.label for row in results.experiment.rows}
    runs = []
    for (row, seed), record in results.records.items():
        numbers = {k: v for k, v in record["metrics"].items() if isinstance(v, int | float)}
        runs.append(CollectedRun(row, labels[row], seed, {}, (), numbers))
    return runs


def _run(folder: Path, name: str, label: str, seed: int, parameters: Mapping[str, Any]) -> CollectedRun:
    run = RunFolder(folder)
    evaluation = run.result() or {}
    return CollectedRun(name, label, seed, parameters, tuple(run.records()), figures_of(evaluation), evaluation)


def figures_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Return an evaluation's numbers by name; empty for none."""
    if not evaluation:
        return {}
    figures: dict[str, float] = {}
    for when in ("before", "pretrained", "after"):
        if (measured := evaluation.get(when)) is None:
            continue
        figures |= {f"{when}.{name}": measured[name] for name in ("eer", "eer_low", "eer_high")}
        figures |= {f"{when}.tar_{p['target_fmr']:g}": p["tar"] for p in measured["points"] if "tar" in p}
    own = evaluation.get("personal", {}).get("figures", {})
    figures |= {f"personal.{name}": value for name, value in own.items()}
    figures |= {
        f"{name}_{unit}": value for unit in ("cpu_s", "wall_s") for name, value in evaluation["run"][unit].items()
    }
    return figures
