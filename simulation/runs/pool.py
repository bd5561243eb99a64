"""Processes that measure runs: a pool of one for every worker, so that one that dies takes only its own run with it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from mien.errors import ConfigError, MienError
from mien.format import several
from mien.shell import provenance
from mien.shell.exits import end_with_parent
from mien.shell.files import make_folder, write_atomically
from simulation.runs.experiment import FORMAT, Experiment, Failure, Job, Measure, Results, read_record, read_results

TICK_S: Final = 1.0
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def run_all(
    study: Experiment,
    folder: Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    jobs: int = 1,
    faces: Path | None = None,
    only: Sequence[str] = (),
    tell: Callable[[str], None] = lambda _text: None,
    tick: Callable[[], None] = lambda: None,
) -> Results:
    """Return the study's results; runs whose record lies in `folder` are not repeated.

    With `only` no other rows are measured; raises ConfigError for a name that no row has. `jobs` processes of one
    thread each take the open runs in the order of rows, seed by seed, so that early results cover every row. `tell`
    gets a line after each run; `tick` is called about once a second while runs go on.
    """
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; at least one process has to work")
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise ConfigError(f"seeds are {list(seeds)}; give different whole numbers from 0 on")
    if unknown := sorted(set(only) - {row.name for row in study.rows}):
        known = ", ".join(row.name for row in study.rows)
        raise ConfigError(f"{study.name} has no row {', '.join(unknown)}; its rows: {known}")
    make_folder(folder)
    runs = [
        (Job(row.name, seed, row.settings, faces), folder / study.file_of(row, seed))
        for seed in seeds
        for row in study.rows
        if not only or row.name in only
    ]
    todo = [run for run in runs if read_record(run[1]) is None]
    if todo:
        done = f"{len(runs) - len(todo)} of {several(len(runs), 'run')} are done"
        tell(f"{study.name}: {done}, {len(todo)} to do with {several(jobs, 'job')}")
    failures = _measure_all(study.measure, todo, min(jobs, len(todo)), tell, tick)
    return read_results(study, folder, seeds=seeds, failures=tuple(failures))


class _Worker:
    """A process that takes one run at a time; another one takes its place where it has died."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._pool: ProcessPoolExecutor | None = None
        self._process: BaseProcess | None = None

    def measure(self, job: Job, target: Path) -> Future[None]:
        """Begin a run, whose record becomes `target`."""
        if self._pool is not None:
            return self._pool.submit(_work, self._measure, job, target)
        before = set(multiprocessing.active_children())
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=end_with_parent)
        with _one_thread(), _without_ctrl_c():
            begun = self._pool.submit(_work, self._measure, job, target)
        (self._process,) = set(multiprocessing.active_children()) - before
        return begun

    def reason(self, done: Future[None], log: Path) -> str | None:
        """Return why a run gave no record, None where it gave one; what is known of an unforeseen error is its log."""
        error = done.exception()
        if error is None:
            log.unlink(missing_ok=True)
            return None
        if isinstance(error, MienError):
            return f"{error.code}: {error.message}"
        if isinstance(error, BrokenProcessPool):
            code = self.stop()
            return _last_line(log) or f"its process ended with code {code}"
        with log.open("a", encoding="utf-8") as file:
            file.writelines(traceback.format_exception(error))
        return f"{type(error).__name__}: {error}"

    def stop(self) -> int | None:
        """End the process, whatever it is at, and return its exit code."""
        if self._pool is None or self._process is None:
            return None
        self._process.terminate()
        self._process.join()
        self._pool.shutdown(cancel_futures=True)
        self._pool = None
        return self._process.exitcode


def _measure_all(
    measure: Measure,
    todo: Sequence[tuple[Job, Path]],
    jobs: int,
    tell: Callable[[str], None],
    tick: Callable[[], None],
) -> list[Failure]:
    """Return the runs that failed, once every run has been tried."""
    left, started, failures, done = list(reversed(todo)), time.monotonic(), list[Failure](), 0
    workers = [_Worker(measure) for _ in range(jobs)]
    at: dict[Future[None], tuple[_Worker, Job, Path]] = {}

    def begin(worker: _Worker) -> None:
        if left:
            job, target = left.pop()
            at[worker.measure(job, target)] = (worker, job, target.with_suffix(".log"))

    try:
        for worker in workers:
            begin(worker)
        while at:
            tick()
            for future in wait(at, TICK_S, FIRST_COMPLETED).done:
                worker, job, log = at.pop(future)
                reason = worker.reason(future, log)
                failures += [Failure(job.row, job.seed, reason)] if reason is not None else []
                done += 1
                rest = (time.monotonic() - started) / done * (len(todo) - done)
                coming = f"about {_minutes(rest)} left" if done < len(todo) else "finished"
                state = "done" if reason is None else f"FAILED: {reason}"
                tell(f"{done}/{len(todo)} {job.row} seed {job.seed}: {state}; {coming}")
                begin(worker)
    finally:
        for worker in workers:
            worker.stop()
    return failures


def _work(measure: Measure, job: Job, target: Path) -> None:
    """Measure a run and write its record; what libraries say meanwhile goes into its log."""
    with target.with_suffix(".log").open("wb") as log:
        os.dup2(log.fileno(), 2)
    started, cpu = time.monotonic(), time.process_time()
    record = {
        "format": FORMAT,
        "row": job.row,
        "seed": job.seed,
        "settings": dict(job.settings),
        "metrics": dict(measure(job)),
        "cpu_s": round(time.process_time() - cpu, 2),
        "wall_s": round(time.monotonic() - started, 2),
        "commit": provenance.commit(),
    }
    write_atomically(target, json.dumps(record, indent=1, sort_keys=True, allow_nan=False).encode())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start in this block use one thread each, whatever library they load."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Let processes that start in this block hear no Ctrl-C, which a terminal sends to all: who started them ends them.

    One that was still importing would print where it was at.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def _minutes(duration_s: float) -> str:
    return f"{duration_s:.0f} s" if duration_s < 100 else f"{duration_s / 60:.0f} min"
