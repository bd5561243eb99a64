# mypy: ignore-errors
"""Rounds of FedAvg in pfl-research, as its documentation sets them up; run in an environment of its own.

One line of JSON on standard output for each order. The process is as its design has it: users one after another, the
model resident.

    python -m benchmarks._peers.run_pfl '{"size": "1e4", "clients": 100, "rounds": 3, "images": 5, "steps": 1, ...}' ...
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import sys

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks._peers.order import Order, RoundClock
from simulation.bench.work import RATE, client, loss_of, tail


class Network(torch.nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self, size):
        super().__init__()
        self.net = tail(size)

    def forward(self, features):
        return self.net(features)

    def loss(self, features, own):
        return loss_of(self(features), own)

    @torch.no_grad()
    def metrics(self, features, own):
        return {"loss": Weighted(self.loss(features, own).item() * len(features), len(features))}


class Clock(TrainingProcessCallback):
    """Notes every round's end."""

    def __init__(self, clock):
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.tick()
        return False, Metrics()


def main() -> None:
    """Print what each argument asks for, as soon as it is measured."""
    for argument in sys.argv[1:]:
        figures = {"version": importlib.metadata.version("pfl"), **rounds_of(Order(**json.loads(argument)))}
        sys.stdout.write(json.dumps(figures) + "\n")
        sys.stdout.flush()


def rounds_of(order: Order) -> dict[str, tuple[float, ...]]:
    """Return the times of an order's rounds."""
    torch.set_num_threads(order.threads)
    np.random.seed(0)
    users = {
        i: PyTorchTensorDataset(tuple(map(torch.from_numpy, client(i, order.images)))) for i in range(order.clients)
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    local = functools.partial(torch.optim.SGD, momentum=order.momentum)
    network, clock = Network(order.size), RoundClock(order.clients)
    model = PyTorchModel(network, local, torch.optim.SGD(network.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=order.rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=order.clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=order.steps, local_learning_rate=RATE, local_batch_size=None
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock(clock)],
    )
    return dataclasses.asdict(clock.timed())


if __name__ == "__main__":
    main()
