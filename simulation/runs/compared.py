"""Two finished runs side by side: what they measured on the same test people, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mien.errors import ConfigError, NotFoundError
from simulation.runs.records import RunFolder
from simulation.runs.spec import differences


@dataclass(frozen=True)
class Compared:
    """Figures by name (rates before training and after each of two runs), and where the runs' settings differ.

    `intervals` are of the two EERs over identities; `settings` are field by path -> its two values.
    """

    figures: Mapping[str, tuple[float, float, float]]
    intervals: tuple[tuple[float, float], tuple[float, float]]
    settings: Mapping[str, tuple[str, str]]

    @property
    def may_be_chance(self) -> bool:
        """True where the intervals overlap."""
        (low, high), (other_low, other_high) = self.intervals
        return low <= other_high and other_low <= high

    @property
    def text(self) -> str:
        """The comparison in Markdown."""
        lines = ["| | before | first | second | difference |", "|---|---|---|---|---|"]
        for name, (before, *after) in self.figures.items():
            cells = [f"{value:.2%}" for value in (before, *after)]
            if name == "EER":
                spans = [f" ({low:.2%} to {high:.2%})" for low, high in self.intervals]
                cells = [cells[0], *(cell + span for cell, span in zip(cells[1:], spans, strict=True))]
            lines.append(f"| {' | '.join([name, *cells])} | {(after[1] - after[0]) * 100:+.2f} points |")
        chance = "overlap: the difference may be chance, and more seeds would tell"
        told = chance if self.may_be_chance else "do not overlap"
        lines += ["", f"The intervals of the two EERs over identities {told}.", ""]
        lines += [f"- {name}: {first} | {second}" for name, (first, second) in self.settings.items()]
        return "\n".join(lines if self.settings else [*lines, "The settings are the same."])


def compare(first: Path, second: Path) -> Compared:
    """Return two finished runs side by side.

    Raises NotFoundError where a folder holds no finished run, ConfigError where the two tested other people or began
    with other models.
    """
    runs = [RunFolder(folder) for folder in (first, second)]
    settings = differences(*(run.spec() for run in runs))
    results = [_result(run) for run in runs]
    if len({result["run"]["data_sha256"] for result in results}) > 1:
        raise ConfigError("these runs are of other faces, and so are their figures; run both on the same ones")
    if other := [name for name in settings if name.startswith("partition.") or name == "evaluation.max_people"]:
        raise ConfigError(f"these runs tested other people, for {other[0]} differs; run both with the same partition")
    if len({result["before"]["model_id"] for result in results}) > 1:
        raise ConfigError("these runs began with other models; what either gained is not the other's to compare")
    measured = [results[0]["before"], *(result["after"] for result in results)]
    figures = {"EER": [each["eer"] for each in measured]}
    tars = [{point["target_fmr"]: point["tar"] for point in each["points"] if "tar" in point} for each in measured]
    for target in sorted(set.intersection(*(set(each) for each in tars)), reverse=True):
        figures[f"TAR at FMR {target * 100:g} %"] = [each[target] for each in tars]
    low, high = ((each["eer_low"], each["eer_high"]) for each in measured[1:])
    return Compared({name: (a, b, c) for name, (a, b, c) in figures.items()}, (low, high), settings)


def _result(run: RunFolder) -> dict[str, Any]:
    found = run.result()
    if found is None:
        raise NotFoundError(f"{run.folder} holds no finished run; go on with mien-sim run --resume")
    return found
