"""Write hashes of what training gives in one tree of this code, as JSON: the half of `loss_compare` that runs the code.

It is run in a process of its own for each tree, old and new ones: names are looked up where a tree has them (`PLACES`),
and nothing else of the tree is used, no test helpers either. A change that moves or renames one of these names adds
its new place here and leaves the old ones.

Hashes depend on the processor and on the libraries: they are compared with others of this machine and never committed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

PACKAGES: Final = ("mien", "coordinator", "device_sdk", "simulation")

PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "Backbone": ("mien.backbones",),
    "CohortSpec": ("mien.specs",),
    "ConfigError": ("mien.errors",),
    "FaceInputSpec": ("mien.specs",),
    "LocalSpec": ("mien.specs",),
    "ModelSpec": ("mien.specs",),
    "PrivacySpec": ("mien.specs",),
    "TaskSpec": ("mien.specs",),
    "layout_of": ("mien.backbones",),
    "theta_of": ("mien.backbones",),
    "TorchRuntime": ("device_sdk.runtimes.torch_runtime",),
    "Cohort": ("simulation.cohort", "simulation.engines.cohort", "simulation.engines.base"),
    "PublicFaces": ("simulation.cohort", "simulation.engines.cohort", "simulation.engines.base"),
    "run_task": ("simulation.engine", "simulation.engines.engine", "simulation.engines.loop"),
    "choose": ("simulation.engines.choice",),
    "StackedEngine": ("simulation.engines.stacked",),
    "ClusterEngine": ("simulation.engines.cluster",),
    "own_ray": ("simulation.engines.cluster",),
}
"""The modules in which a name is or was, oldest first; "module:other" where it is called `other` there."""

ENGINES: Final = ("sequential", "fused", "stacked", "cluster")
SEEDS: Final = (7, 8, 9)
ROUNDS: Final = 3
DEVICES: Final = 6
PER_ROUND: Final = 5
PER_SHARD: Final = 2
WORKERS: Final = 2
DIM: Final = 8


@dataclass(frozen=True)
class Form:
    """A method in one of its forms, as the test of every method has it."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reveals: tuple[str, ...] = ()
    several: bool = False
    lr: float = 0.05


_SHOWN: Final = ("class_embeddings",)
FORMS: Final[Mapping[str, Form]] = {
    "fedavg": Form("fedavg", {"margin": 1.0}),
    "fedavg-cosface": Form("fedavg", {"loss": "cosface"}, several=True),
    "fixed": Form("fixed_embedding"),
    "fedface": Form("fedface"),
    "fedface-exact": Form("fedface", {"margin": 1.0}, _SHOWN),
    "fedaws": Form("fedaws"),
    "fedprox": Form("fedprox", {"margin": 1.0, "mu": 0.5}),
    "scaffold": Form("scaffold", {"margin": 1.0}),
    "mime": Form("mime", {"margin": 1.0}),
    "pfm": Form("pfm_fv", {"validation": "off", "loss": "arcface"}, several=True, lr=0.002),
    "fedpe": Form("fedgc", {"identities": 2, "correction": {"kind": "none"}}, several=True),
    "fedgc-exact": Form("fedgc", {"identities": 2}, _SHOWN, several=True),
    "fedfr": Form("fedfr", {"public_classes": 5}, several=True),
    "fedfr-uda": Form("fedfr_uda", several=True, lr=0.002),
}


def found(name: str) -> Any:
    """Return what the tree calls `name`, from the first of its places that there is."""
    for place in PLACES[name]:
        module, _, attribute = place.partition(":")
        try:
            there = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                continue
            raise  # the place is there, and what it imports is not
        if hasattr(there, attribute or name):
            return getattr(there, attribute or name)
    sys.exit(f"{name} is in none of {', '.join(PLACES[name])}: add its place to PLACES in {Path(__file__).name}")


def leave_out_installed() -> None:
    """Let nothing be imported from an editable install: its finder gives a module that a tree no longer has."""
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not getattr(finder, "__module__", "").startswith("__editable__")
    ]


def check_tree(tree: Path) -> None:
    """Raise RuntimeError where a module of the packages is another tree's, such as the one that is installed."""
    for package in PACKAGES:
        importlib.import_module(package)
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES:
            continue
        file = getattr(module, "__file__", None)
        if file is None or not Path(file).resolve().is_relative_to(tree.resolve()):
            raise RuntimeError(f"module {name} comes from {file} and not from {tree}")


@dataclass(frozen=True)
class Model:
    """A recogniser that trains in milliseconds."""

    backbone: Any
    spec: Any
    layout: Any
    theta: NDArray[np.float32]
    part: Any

    def runtime(self) -> Any:
        """Return a new runtime on one thread."""
        return found("TorchRuntime")(self.spec, self.layout, backbone=self.backbone, threads=1)


def small_model() -> Model:
    """Return a recogniser with a frozen stage, a convolution and a linear map, the same one wherever it is made."""
    torch.manual_seed(0)
    stages = {
        "stem": nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.PReLU(3), nn.AvgPool2d(28)),
        "mix": nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.PReLU(4)),
        "embedding": nn.Sequential(nn.Flatten(), nn.Linear(64, DIM)),
    }
    trained = ("mix.*", "embedding.*")
    backbone = found("Backbone")("tiny", found("FaceInputSpec")(dim=DIM), stages, trained)
    backbone.eval().requires_grad_(False)
    layout = found("layout_of")(backbone)
    spec = found("ModelSpec")("tiny", layout.sha256, backbone.input_spec, "made up", "none", trained)
    return Model(backbone, spec, layout, found("theta_of")(backbone), layout.part(trained))


def task_of(name: str, engine: str, seed: int) -> Any:
    """Return the task of a form: two epochs of small batches, and for the fused engine the one step that it takes."""
    form = FORMS[name]
    steps = {"epochs": 1, "batch_size": 0} if engine == "fused" else {"epochs": 2, "batch_size": 3}
    return found("TaskSpec")(
        name=name,
        method=form.method,
        rounds=ROUNDS,
        cohort=found("CohortSpec")(size=PER_ROUND, min_reports=PER_ROUND),
        local=found("LocalSpec")(lr=form.lr, **steps),
        privacy=found("PrivacySpec")(form.reveals, 2, secure_aggregation="off"),
        options=dict(form.options),
        seed=seed,
    )


def crops_of(num_images: int, *seed: int) -> NDArray[np.uint8]:
    """Return crops (N, 112, 112, 3) of one made-up identity: coloured quarters that vary."""
    rng = np.random.default_rng(seed)
    quarters = rng.integers(60, 196, (2, 2, 3))
    varied = np.clip(quarters + rng.integers(-40, 41, (num_images, 2, 2, 3)), 0, 255)
    return varied.astype(np.uint8).repeat(56, axis=1).repeat(56, axis=2)


def cohort_of(name: str, seed: int) -> Any:
    """Return the phones of a form, with 3 to 5 images of each identity, and public faces.

    Most have 3 or 4, which are trained in one stack also in a cluster's shard of two; 5 is too many for one with 3.
    """
    people = 2 if FORMS[name].several else 1
    sizes = {f"phone-{i}": 5 if i == DEVICES - 1 else 3 + i % 2 for i in range(DEVICES)}
    crops = {
        device: np.concatenate([crops_of(size, seed, i, person) for person in range(people)])
        for i, (device, size) in enumerate(sizes.items())
    }
    labels = {device: np.repeat(np.arange(people), size) for device, size in sizes.items()} if people > 1 else {}
    public = np.concatenate([crops_of(3, seed, DEVICES, k) for k in range(5)])
    return found("Cohort")(crops, public=found("PublicFaces")(public, np.repeat(np.arange(5), 3)), labels=labels)


@dataclass(frozen=True)
class MakeWorkersEngine:
    """Makes the engine of a cluster's worker, there: the one that is chosen for a small model."""

    tree: Path

    def __call__(self, device: str) -> Any:
        leave_out_installed()
        engine = found("StackedEngine")(small_model().runtime())
        check_tree(self.tree)
        return engine


@contextlib.contextmanager
def cluster(model: Model, tree: Path) -> Iterator[Any]:
    """Run Ray and one cluster engine, which serves all forms, while the block runs."""
    with (
        found("own_ray")(num_cpus=WORKERS, num_gpus=0),
        found("ClusterEngine")(model.runtime(), MakeWorkersEngine(tree), per_shard=PER_SHARD) as engine,
    ):
        yield engine


def run_of(model: Model, name: str, engine: str, seed: int, made: Any = None) -> dict[str, Any]:
    """Return a run's hashes round by round, or why the engine does not run the form; `made` is a cluster's engine."""
    task = task_of(name, engine, seed)
    if made is None:
        try:
            made = found("choose")(engine, model.runtime(), task, model.part).engine
        except found("ConfigError") as error:
            return {"not_applicable": str(error)}
    hashes: list[dict[str, str]] = []

    def note(state: Any, record: Any) -> None:
        hashes.append(
            {
                "theta": hashed(np.ascontiguousarray(state.theta, "<f4")),
                "server": hashed({"arrays": state.arrays, "revealed": state.revealed}),
                "losses": hashed(np.array([record.weight, record.loss_before, record.loss_after], "<f8")),
            }
        )

    cohort = cohort_of(name, seed)
    done = found("run_task")(task, model.part, DIM, model.theta, cohort, made, after_round=note)
    hashes[-1]["phones"] = hashed(done.cohort.private)
    if len({each["theta"] for each in hashes} | {hashed(model.theta)}) != ROUNDS + 1:
        raise RuntimeError(f"a round of {name} on engine {engine} did not move the model: its hash would say nothing")
    return {"rounds": hashes}


def hashed(content: Any) -> str:
    """Return the SHA-256 of an array, or of a mapping that holds arrays, with their names, types and shapes."""
    if isinstance(content, Mapping):
        told = "".join(f"{key!r}:{hashed(content[key])}\n" for key in sorted(content)).encode()
    else:
        array = np.ascontiguousarray(content)
        told = array.tobytes() if array.dtype == "<f4" and array.ndim == 1 else _described(array)
    return hashlib.sha256(told).hexdigest()


def _described(array: NDArray[Any]) -> bytes:
    return f"{array.dtype.str}{array.shape}".encode() + array.tobytes()


def measured(forms: list[str], engines: list[str], seeds: list[int], tree: Path) -> dict[str, Any]:
    """Return the runs (form -> engine -> seed) of the tree whose packages are imported here."""
    model = small_model()
    runs: dict[str, Any] = {name: {} for name in forms}
    for engine in engines:
        with cluster(model, tree) if engine == "cluster" else contextlib.nullcontext() as made:
            for name in forms:
                runs[name][engine] = {str(seed): run_of(model, name, engine, seed, made) for seed in seeds}
    check_tree(tree)
    return runs


def made_with() -> dict[str, str]:
    """Return what hashes depend on beside the code."""
    libraries = {name: metadata.version(name) for name in ("numpy", "torch")}
    return {"machine": platform.machine(), "python": platform.python_version(), **libraries}


def main() -> None:
    """Measure the tree and write its hashes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    chosen = parser.parse_args()
    forms, engines = chosen.forms.split(","), chosen.engines.split(",")
    if unknown := {*forms} - {*FORMS} | {*engines} - {*ENGINES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join((*FORMS, *ENGINES))}")
    leave_out_installed()
    torch.set_num_threads(1)
    runs = measured(forms, engines, list(SEEDS), chosen.tree)
    chosen.out.write_text(json.dumps({"made_with": made_with(), "runs": runs}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
