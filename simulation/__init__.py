"""Emulated phones, experiments, evaluation and the demo: the one package that may import both sides.

The names here are what others may build on: a cohort and the loop over its rounds, experiments, and their records.
All other modules are inner: they change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mien._door import door

if TYPE_CHECKING:
    from simulation.engines.base import Cohort, PublicFaces
    from simulation.engines.choice import choose
    from simulation.engines.engine import Run, run_task
    from simulation.runs.experiment import Experiment
    from simulation.runs.export import frame_of
    from simulation.runs.records import RunFolder
    from simulation.runs.run import run_experiment
    from simulation.runs.spec import RunSpec

__all__ = [
    "Cohort",
    "Experiment",
    "PublicFaces",
    "Run",
    "RunFolder",
    "RunSpec",
    "choose",
    "frame_of",
    "run_experiment",
    "run_task",
]

_HOMES: Final = {
    "choose": "engines.choice",
    **dict.fromkeys(("Cohort", "PublicFaces"), "engines.base"),
    **dict.fromkeys(("Run", "run_task"), "engines.engine"),
    "Experiment": "runs.experiment",
    "frame_of": "runs.export",
    "RunFolder": "runs.records",
    "run_experiment": "runs.run",
    "RunSpec": "runs.spec",
}

__getattr__, __dir__ = door(__name__, _HOMES)
