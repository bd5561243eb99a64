"""Records in MLflow and Weights & Biases, where their packages are installed; and what is said where they are not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mien.errors import ConfigError
from simulation.runs.collected import CollectedRun
from simulation.runs.trackers import log_mlflow, log_wandb
from tests.helpers import ROOT
from tests.without import hide

ROUNDS = tuple({"round": n, "loss_after": 1.0 / n, "eer": 0.1 - 0.01 * n, "clients": 16} for n in (1, 2, 3))
RUNS = [
    CollectedRun("lr-0.1", "lr 0.1", 0, {"task.local.lr": 0.1}, ROUNDS, {"after.eer": 0.07}),
    CollectedRun("lr-0.3", "lr 0.3", 1, {"task.local.lr": 0.3}, ROUNDS[:2], {"after.eer": 0.08}),
]

ASK = """
import json, sys
from mien.errors import MissingDependencyError
from simulation.runs import trackers
said = {}
asked = {"mlflow": lambda: trackers.log_mlflow([], "sqlite://", "x"), "wandb": lambda: trackers.log_wandb([], "x")}
for name, ask in asked.items():
    try:
        ask()
    except MissingDependencyError as error:
        said[name] = error.message
print(json.dumps(said))
"""


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(("mlflow", "wandb"), tmp_path / "hidden", monkeypatch)
    told = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert json.loads(told) == {
        "mlflow": "runs in MLflow need its package; pip install mlflow-skinny",
        "wandb": "runs in Weights & Biases need its package; pip install wandb",
    }


@pytest.mark.filterwarnings("ignore")
class TestMlflow:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("mlflow", reason="mlflow is not installed (it is no dependency)")

    def test_runs_are_there_with_settings_and_figures(self, tmp_path: Path) -> None:
        from mlflow.tracking import MlflowClient

        uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        first, second = log_mlflow(RUNS, uri, "lr")
        client = MlflowClient(tracking_uri=uri)
        run = client.get_run(first)
        assert run.info.run_name == "lr-0.1-s0"
        assert run.data.params == {"seed": "0", "task.local.lr": "0.1"}
        assert run.data.metrics["after.eer"] == 0.07
        losses = [(each.step, each.value) for each in client.get_metric_history(first, "loss_after")]
        assert losses == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
        assert client.get_run(second).data.params["seed"] == "1"
        assert log_mlflow(RUNS, uri, "lr") == [first, second]
        assert len(client.search_runs([run.info.experiment_id])) == 2

    def test_a_store_that_refuses(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="MLflow refuses nothing://here"):
            log_mlflow(RUNS, "nothing://here", "lr")


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_writes_files_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed (it is no dependency)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    ids = log_wandb(RUNS, "mien")
    assert len(set(ids)) == 2
    assert log_wandb(RUNS, "mien") == ids
    found = {path.name for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert found == {f"run-{each}.wandb" for each in ids}
    written = b"".join(path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    for word in (b"loss_after", b"after.eer", b"task.local.lr", b"lr-0.3-s1"):
        assert word in written
