"""Benchmark cases: networks with made-up images, so that phones by the hundred cost what their bookkeeping costs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

import numpy as np
from torch import nn

from device_sdk.runtimes.torch_runtime import DeviceName, TorchRuntime
from mien.backbones import Backbone, build_backbone, layout_of, theta_of
from mien.backbones.small import TRAINED, build_small_network
from mien.layout import ParameterLayout, ParameterPart, Vector
from mien.methods import find_method
from mien.methods.base import ServerState
from mien.specs import CohortSpec, FaceInputSpec, LocalSpec, ModelSpec, PrivacySpec, TaskSpec
from simulation.bench.work import DIM, MARGIN, RATE, tail
from simulation.engines.base import Cohort, RoundWork

_POOLED = 14
"""Pixels a side of a square of which the small networks see the mean: 8 x 8 x 3 features of a crop."""


@dataclass(frozen=True)
class Case:
    """A network with phones of equally many images, each of which takes so many local steps of FedAvg in a round.

    Steps are SGD's with `momentum`, each on all of a phone's images.
    """

    name: str
    backbone: Backbone = field(repr=False)
    part: ParameterPart = field(repr=False)
    theta: Vector = field(repr=False)
    clients: int
    images: int
    steps: int
    momentum: float = 0.0

    @property
    def layout(self) -> ParameterLayout:
        """The network's parameters."""
        return self.part.layout

    @property
    def cohort(self) -> Cohort:
        """New phones with crops of noise that nobody can write to, as data sets give them."""
        spec, crops = self.backbone.input_spec, {}
        for number in range(self.clients):
            noise = np.random.default_rng(number).integers(0, 256, (self.images, spec.height, spec.width, 3), np.uint8)
            noise.flags.writeable = False
            crops[f"phone-{number:05d}"] = noise
        return Cohort(crops)

    @property
    def task(self) -> TaskSpec:
        """FedAvg with FedFace's positive hinge; all images in one batch, none mirrored, as the other loops do."""
        return TaskSpec(
            "bench",
            method="fedavg",
            rounds=100_000,
            cohort=CohortSpec(size=self.clients, min_reports=2),
            local=LocalSpec(lr=RATE, steps=self.steps, momentum=self.momentum, flip=False),
            options={"margin": MARGIN},
            privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
        )

    def runtime(self, threads: int, device: DeviceName) -> TorchRuntime:
        """Return a runtime of this network."""
        spec = ModelSpec(
            self.backbone.name,
            self.layout.sha256,
            self.backbone.input_spec,
            "made up",
            "none",
            tuple(self.part.names),
        )
        return TorchRuntime(spec, self.layout, backbone=self.backbone, threads=threads, device=device)

    def work(self, cohort: Cohort, number: int) -> RoundWork:
        """Return a round of all phones on the first model."""
        start = find_method(self.task.method).server_start(self.task, self.part, self.theta)
        state = ServerState(self.theta, start.arrays)
        return RoundWork(self.task, self.part, self.backbone.input_spec.dim, state, cohort, tuple(cohort.crops), number)


def small(size: str, *, clients: int, images: int = 5, steps: int = 1, momentum: float = 0.0) -> Case:
    """Return a network of about 10^4 ("1e4"), 10^6 or 10^7 trained parameters above features that are means."""
    stages = OrderedDict(
        mean=nn.AvgPool2d(_POOLED),
        top=tail(size),
    )
    backbone = Backbone(f"bench_{size}", FaceInputSpec(dim=DIM), stages, ("top.*",))
    return replace(_case(size, backbone, ("top.*",), clients, images, steps), momentum=momentum)


def face_network(name: str, *, clients: int, images: int = 20) -> Case:
    """Return a recogniser of real size, trained whole."""
    return _case(name, build_backbone(name, dim=DIM), ("*",), clients, images, steps=1)


def small_network(*, clients: int) -> Case:
    """Return the convolutional network of studies from the first layer on, with all of it trained."""
    return _case("small", build_small_network(FaceInputSpec(dim=DIM)), TRAINED, clients, images=32, steps=4)


def _case(name: str, backbone: Backbone, patterns: tuple[str, ...], clients: int, images: int, steps: int) -> Case:
    backbone.eval().requires_grad_(False)
    layout = layout_of(backbone)
    return Case(name, backbone, layout.part(patterns), theta_of(backbone), clients, images, steps)
