# mypy: ignore-errors
"""Rounds of FedAvg in pfl-research, as its documentation sets them up; run in an environment of its own.

Orders come on standard input (`order.Rounds`). The process is as its design has it: users one after another, the model
resident.

    echo '{"size": "1e4", "clients": 100, "turns": 1, "images": 5, ...}' | python -m benchmarks._peers.run_pfl
"""

from __future__ import annotations

import functools
import importlib.metadata

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

from benchmarks._peers.order import Order, Rounds
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


class Asked(TrainingProcessCallback):
    """Waits after every round for what is asked for next."""

    def __init__(self, rounds):
        self.rounds = rounds

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        return self.rounds.ended(), Metrics()


def main() -> None:
    """Take rounds for as long as some are asked for."""
    rounds = Rounds(importlib.metadata.version("pfl"))
    for order in rounds.orders():
        take(order, rounds)


def take(order: Order, rounds: Rounds) -> None:
    """Take rounds until something else is asked for."""
    torch.set_num_threads(order.threads)
    np.random.seed(0)
    users = {
        i: PyTorchTensorDataset(tuple(map(torch.from_numpy, client(i, order.images)))) for i in range(order.clients)
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    local = functools.partial(torch.optim.SGD, momentum=order.momentum)
    network = Network(order.size)
    model = PyTorchModel(network, local, torch.optim.SGD(network.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**9,
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
        callbacks=[Asked(rounds)],
    )


if __name__ == "__main__":
    main()
