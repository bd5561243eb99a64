# mypy: ignore-errors
"""Rounds of FedAvg in Flower's simulation on Ray, as its PyTorch tutorial sets them up; run in its own environment.

One line of JSON on standard output.

    python -m benchmarks._peers.run_flower '{"size": "1e4", "clients": 100, "rounds": 3, "images": 5, "steps": 1, ...}'
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import sys
import warnings

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks._peers.order import Order, RoundClock
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


def server_app(order: Order, clock: RoundClock) -> ServerApp:
    """Return the app that asks every phone in every round, and notes each round's end."""
    app = ServerApp()

    @app.main()
    def run(grid, context):
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=order.clients)
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(tail(order.size).state_dict()),
            num_rounds=order.rounds + 1,
            evaluate_fn=lambda number, arrays: clock.tick() if number else None,
        )

    return app


def main() -> None:
    """Print what the one argument asks for."""
    order = Order(**json.loads(sys.argv[1]))
    warnings.simplefilter("ignore")
    clock = RoundClock(order.clients)
    run_simulation(
        server_app=server_app(order, clock),
        client_app=client_app(order),
        num_supernodes=order.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": order.threads, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
        },
    )
    figures = {"version": importlib.metadata.version("flwr"), **dataclasses.asdict(clock.timed())}
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
