"""Records for MLflow and Weights & Biases, each by its own package, which whoever wants it has installed.

What is written are a run's name, seed, swept fields and figures: never a picture, an embedding or a person's name. The
same records written again are the same runs there.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mien.errors import ConfigError, MissingDependencyError, UnreachableError
from simulation.runs.collected import CollectedRun
from simulation.runs.export import cell

KEY: Final = "mien.records"
"""Tag of a run in MLflow: the digest of its records."""
_AT_ONCE: Final = 1000
"""Metrics that MLflow takes in one call."""


def log_mlflow(runs: Sequence[CollectedRun], uri: str, experiment: str) -> list[str]:
    """Write runs into an MLflow tracking store and return their ids there; one that has these records is left as it is.

    `uri` is the store's, as MLflow names it: `sqlite:///mlflow.db`, or a server's address. Raises
    MissingDependencyError without the package `mlflow` or `mlflow-skinny`, ConfigError with MLflow's reason for a store
    that refuses.
    """
    try:
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingDependencyError("runs in MLflow need its package; pip install mlflow-skinny") from error
    written = []
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if found is None else found.experiment_id
        for run in runs:
            digest = _digest(run)
            # One that an export left half written is not finished, and written anew.
            whole = f"tags.`{KEY}` = '{digest}' and attributes.status = 'FINISHED'"
            if there := client.search_runs([number], whole, max_results=1):
                written.append(str(there[0].info.run_id))
                continue
            made = client.create_run(number, run_name=_name(run), tags={KEY: digest})
            now_ms = int(time.time() * 1000)
            last = max((int(each["round"]) for each in run.rounds), default=0)
            metrics = [
                Metric(name, value, now_ms, last if step is None else step) for step, name, value in run.values()
            ]
            params = [Param(name, cell(value)) for name, value in _parameters(run)]
            client.log_batch(made.info.run_id, params=params)
            for first in range(0, len(metrics), _AT_ONCE):
                client.log_batch(made.info.run_id, metrics=metrics[first : first + _AT_ONCE])
            client.set_terminated(made.info.run_id)
            written.append(str(made.info.run_id))
    except MlflowException as error:
        raise ConfigError(f"MLflow refuses {uri}: {error.message}") from error
    return written


def log_wandb(runs: Sequence[CollectedRun], project: str) -> list[str]:
    """Write runs into a project of Weights & Biases and return their ids there, the same for the same records.

    Where they go is said as for every program of theirs: WANDB_API_KEY and WANDB_BASE_URL, or WANDB_MODE=offline and
    WANDB_DIR for files. Raises MissingDependencyError without the package `wandb`, UnreachableError with its reason
    where it does not get there.
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingDependencyError("runs in Weights & Biases need its package; pip install wandb") from error
    written = []
    try:
        for run in runs:
            made = wandb.init(
                project=project, id=_digest(run)[:16], name=_name(run), config=dict(_parameters(run)), resume="allow"
            )
            steps: dict[int, dict[str, float]] = {}
            for step, name, value in run.values():
                if step is None:
                    made.summary[name] = value
                else:
                    steps.setdefault(step, {})[name] = value
            for step, figures in sorted(steps.items()):
                made.log(figures, step=step)
            made.finish()
            written.append(str(made.id))
    except wandb.Error as error:
        raise UnreachableError(f"Weights & Biases took no runs: {error}") from error
    return written


def _name(run: CollectedRun) -> str:
    return f"{run.name}-s{run.seed}"


def _parameters(run: CollectedRun) -> Iterator[tuple[str, Any]]:
    """Yield the seed and the swept fields."""
    yield "seed", run.seed
    yield from run.parameters.items()


def _digest(run: CollectedRun) -> str:
    """Return a digest of all that is written of a run."""
    said = [_name(run), list(_parameters(run)), list(run.values())]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
