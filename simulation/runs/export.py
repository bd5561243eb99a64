"""Records for other programs: one line a figure, as a CSV file or a DataFrame, and TensorBoard's event files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from mien.errors import AlreadyExistsError, MissingDependencyError
from mien.shell.files import storage_errors, write_atomically
from simulation.engines.frame import to_frame
from simulation.runs.collected import CollectedRun, collect

if TYPE_CHECKING:
    from pandas import DataFrame

FIXED: Final = ("run", "seed")
MEASURED: Final = ("round", "metric", "value")


def csv_text(runs: Sequence[CollectedRun]) -> str:
    """Return one line a figure: run, seed, each parameter that differs, round (empty for the end's), metric, value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_columns(runs))
    for *known, number, metric, value in _lines(runs):
        writer.writerow([*map(cell, known), "" if number is None else number, metric, repr(value)])
    return out.getvalue()


def frame_of(folder: Path) -> DataFrame:
    """Return what a folder of mien-sim run, sweep or reproduce holds as a pandas DataFrame: one line a figure.

    Columns are those of the CSV file: run, seed, each parameter that differs, round (missing for the end's), metric,
    value. Raises NotFoundError for a folder without records, MissingDependencyError without the package `pandas`.
    """
    runs = collect(folder)
    return to_frame(_columns(runs), _lines(runs))


def _parameters(runs: Sequence[CollectedRun]) -> list[str]:
    return sorted({name for run in runs for name in run.parameters})


def _columns(runs: Sequence[CollectedRun]) -> list[str]:
    return [*FIXED, *_parameters(runs), *MEASURED]


def _lines(runs: Sequence[CollectedRun]) -> Iterator[list[Any]]:
    """Yield a line for each figure of each run, as `_columns` heads it."""
    parameters = _parameters(runs)
    for run in runs:
        known = [run.name, run.seed, *(run.parameters.get(name, "") for name in parameters)]
        for number, metric, value in run.values():
            yield [*known, number, metric, value]


def write_csv(runs: Sequence[CollectedRun], path: Path) -> None:
    """Write the CSV file; raises DiskFullError where it does not fit."""
    write_atomically(path, csv_text(runs).encode())


def cell(value: Any) -> str:
    """Return a parameter as text: as it is, or as JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


class TensorBoard:
    """One run's event files: losses and error rates by round."""

    def __init__(self, folder: Path, *, next_round: int = 1) -> None:
        """Begin at a round: what an earlier process wrote of it and later ones is not shown.

        Raises MissingDependencyError without the package `tensorboard`, AlreadyExistsError for a file in the way.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError(
                "event files need TensorBoard; pip install '.[simulation]' in Mien's folder"
            ) from error
        try:
            with storage_errors(str(folder)):
                self._writer = SummaryWriter(str(folder), purge_step=next_round)
        except (FileExistsError, NotADirectoryError) as error:
            raise AlreadyExistsError(f"{folder} cannot be a folder: a file is in the way; name another one") from error

    def __enter__(self) -> TensorBoard:
        return self

    @classmethod
    @contextlib.contextmanager
    def watching(cls, folder: Path | None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """Yield what writes the records of a run that goes on, from the first one that it is given; None: nowhere."""
        boards: list[TensorBoard] = []
        with contextlib.ExitStack() as opened:

            def write(record: Mapping[str, Any]) -> None:
                if folder is None:
                    return
                if not boards:
                    boards.append(opened.enter_context(cls(folder, next_round=int(record["round"]))))
                boards[0].round(record)

            yield write

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def round(self, record: Mapping[str, Any]) -> None:
        """Write one round's record, to be seen at once."""
        number = int(record["round"])
        for name, tag in _TAGS.items():
            if name in record:
                self._writer.add_scalar(tag, float(record[name]), number)
        self._writer.flush()


_TAGS: Final = {
    "loss_before": "loss/before local training",
    "loss_after": "loss/after local training",
    "eer": "test people/equal error rate",
    "clients": "round/clients",
    "wall_s": "round/seconds",
}


def write_events(runs: Sequence[CollectedRun], folder: Path) -> list[Path]:
    """Write every run's rounds into a folder of its own and return these; what was there before is not shown."""
    written = []
    for run in runs:
        place = folder / f"{run.name}-s{run.seed}" if len(runs) > 1 else folder
        with TensorBoard(place) as board:
            for record in run.rounds:
                board.round(record)
        written.append(place)
    return written
