# mypy: ignore-errors
"""Rounds of FedAvg in Flower's simulation on Ray, as its PyTorch tutorial sets them up; run in its own environment.

Orders come on standard input (`order.Rounds`), one for each process.

    echo '{"size": "1e4", "clients": 100, "turns": 1, "images": 5, ...}' | python -m benchmarks._peers.run_flower
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import warnings

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks._peers.order import Order, Rounds
from simulation.bench.work import RATE, client, loss_of, tail


def client_app(order: Order) -> ClientApp:
    """Return the app that trains one phone."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        torch.set_num_threads(1)
        network = tail(order.size)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        features, own = map(torch.from_numpy, client(int(context.node_config["partition-id"]), order.images))
        optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=order.momentum)
        for _ in range(order.steps):
            optimiser.zero_grad()
            loss = loss_of(network(features), own)
            loss.backward()
            optimiser.step()
        content = {
            "arrays": ArrayRecord(network.state_dict()),
            "metrics": MetricRecord({"train_loss": float(loss), "num-examples": len(features)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


class Over(Exception):  # noqa: N818 - nothing has failed
    """No more rounds are asked for."""


def server_app(order: Order, rounds: Rounds) -> ServerApp:
    """Return the app that asks every phone in every round, and waits after each for what is asked for next."""
    app = ServerApp()

    def ended(number, _arrays):
        if number and rounds.ended():
            raise Over

    @app.main()
    def run(grid, context):
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=order.clients)
        with contextlib.suppress(Over):
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(tail(order.size).state_dict()),
                num_rounds=10**9,
                evaluate_fn=ended,
            )

    return app


def main() -> None:
    """Take rounds for as long as some are asked for."""
    warnings.simplefilter("ignore")
    rounds = Rounds(importlib.metadata.version("flwr"))
    for order in rounds.orders():
        run_simulation(
            server_app=server_app(order, rounds),
            client_app=client_app(order),
            num_supernodes=order.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": order.threads, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
            },
        )


if __name__ == "__main__":
    main()
