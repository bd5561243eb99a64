"""Loops of torch that take the same steps without Mien: what engines are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from device_sdk.runtimes.torch_runtime import DeviceName
from simulation.bench.cases import Case
from simulation.bench.work import RATE, loss_of

Round = Callable[[], None]
LARGE_BATCH = 128


def plain(case: Case, device: DeviceName) -> Round:
    """Return a round as a bare loop: each phone's steps one after another, nothing reset, measured or added up."""
    network, phones = _network(case, device), _phones(case, device)
    optimiser = _optimiser(case, _trained(case, network))

    def run() -> None:
        for inputs, own in phones:
            _steps(case, network, optimiser, inputs, own)

    return run


def resident(case: Case, device: DeviceName) -> Round:
    """Return a round as pfl-research designs it: the model stays loaded, is set back for each phone, and what it
    changed is weighed and added up where it is.
    """
    network, phones = _network(case, device), _phones(case, device)
    trained = _trained(case, network)
    start = [tensor.detach().clone() for tensor in trained]
    optimiser = _optimiser(case, trained)

    def run() -> None:
        total = [torch.zeros_like(tensor) for tensor in start]
        for inputs, own in phones:
            optimiser.state.clear()
            _steps(case, network, optimiser, inputs, own)
            with torch.no_grad():
                for there, before, after in zip(total, start, trained, strict=True):
                    there.add_(after - before, alpha=len(inputs))
                    after.copy_(before)

    return run


def large_batch(case: Case, device: DeviceName) -> Round:
    """Return plain training, not federated: all phones' images once, in batches of 128, one step a batch."""
    network, phones = _network(case, device), _phones(case, device)
    inputs, own = (torch.cat(each) for each in zip(*phones, strict=True))
    batches = list(zip(torch.split(inputs, LARGE_BATCH), torch.split(own, LARGE_BATCH), strict=True))
    optimiser = torch.optim.SGD(_trained(case, network), lr=RATE)

    def run() -> None:
        for batch in batches:
            _step(network, optimiser, *batch)

    return run


def _optimiser(case: Case, tensors: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(tensors, lr=RATE, momentum=case.momentum)


def _steps(case: Case, network: nn.Module, optimiser: torch.optim.Optimizer, inputs: Tensor, own: Tensor) -> None:
    for _ in range(case.steps):
        _step(network, optimiser, inputs, own)


def _step(network: nn.Module, optimiser: torch.optim.Optimizer, inputs: Tensor, own: Tensor) -> None:
    optimiser.zero_grad()
    loss_of(network(inputs), own).backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _network(case: Case, device: DeviceName) -> nn.Module:
    """Return the stages that are trained, from the first trained one on, on a copy of the weights."""
    backbone = copy.deepcopy(case.backbone).to(device)
    return nn.Sequential(*list(backbone.children())[backbone.split_for(case.part.names) :])


def _trained(case: Case, network: nn.Module) -> list[Tensor]:
    parameters = list(network.parameters())
    assert sum(tensor.numel() for tensor in parameters) <= case.part.size  # the part may have BatchNorm's statistics
    return [tensor.requires_grad_() for tensor in parameters]


def _phones(case: Case, device: DeviceName) -> list[tuple[Tensor, Tensor]]:
    """Return each phone's features and class embedding, once for each image."""
    backbone, spec = case.backbone, case.backbone.input_spec
    split, found = backbone.split_for(case.part.names), []
    with torch.no_grad():
        for number, crops in enumerate(case.cohort.crops.values()):
            features = backbone.cpu().trunk(torch.from_numpy(spec.network_input(np.asarray(crops))), split)
            own = np.random.default_rng(number).standard_normal(spec.dim).astype(np.float32)
            rows = torch.from_numpy(np.repeat((own / np.linalg.norm(own))[None], len(crops), axis=0))
            found.append((features.to(device), rows.to(device)))
    return found
