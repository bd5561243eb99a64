"""Parts shared by laptop-scale reproductions: pretrained SFace, people by name, and features computed once.

Most studies train the adapter behind SFace (`adapter.*`), so what enters it never changes. It is computed
once a machine, into a private folder of the temporary directory, sealed (`simulation.faces.features`); deleting the
folder costs the next start some minutes. No picture and no name of anybody lands there: each process reads the faces
where they lie, which takes 0.6 ms of processor time an aligned picture and 6 ms one in which the face is to be found.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline, decode_image
from device_sdk.runtimes.feature_cache import FeatureCache
from device_sdk.runtimes.torch_runtime import INFERENCE_BATCH, TorchRuntime
from mien.backbones import initialised_from, layout_of, theta_of
from mien.backbones.adapter import build_adapted
from mien.backbones.small import TRAINED, build_small_network
from mien.errors import EmptyFolderError, UndefinedMetricError
from mien.evaluation import Comparisons, all_pairs, det_curve, equal_error_rate
from mien.evaluation.verification import tar_at_fmr
from mien.layout import ParameterPart, Vector
from mien.methods.base import Crops, Trained
from mien.models.known_models import FACE_INPUTS
from mien.shell.lock import held
from mien.specs import FaceInputSpec, LocalSpec, ModelSpec
from simulation.centralised.systems import Faces, Head, Trainer
from simulation.engines.choice import device
from simulation.engines.engine import Cohort, PublicFaces
from simulation.faces.conditions import in_condition
from simulation.faces.datasets import LabelledCrops, People, digest, people_of, read_people
from simulation.faces.features import KeptFeatures, private_folder
from simulation.faces.models import Model, mobilefacenet_with_adapter, sface, sface_with_adapter

TRAINABLE: Final = ("adapter.*",)
"""The linear map behind SFace: 16,512 parameters on features of length 128."""

MODELS: Final = MappingProxyType(
    {
        "sface": ("SFace with an adapter", sface_with_adapter),
        "mobilefacenet192": ("MobileFaceNet-192 with an adapter", mobilefacenet_with_adapter),
    }
)
"""Recognisers that a workbench may have: what their features are kept as, and the model."""

FORMAT: Final = 5
NETWORK_BYTES: Final = 1536 * 2**20
"""Features of a study that trains the network's own last blocks: some 3,800 crops."""
MaxImages = int | tuple[tuple[str, int], ...] | None
"""So many images of everybody; or of each domain's people, and all of others'; or all."""

_CHUNK: Final = 10
"""Batches between two writes to the disk."""


@dataclass(frozen=True, eq=False)
class Workbench:
    """A pretrained model, its trained part, a runtime with ready features, and people's crops by name.

    `dataset_sha256` names the faces in records. The runtime's features are those of crops as they are: with
    `local.flip` the mirrored ones are computed in every process.
    """

    model: Model
    part: ParameterPart
    runtime: TorchRuntime = field(repr=False)
    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    people: tuple[str, ...] = field(repr=False)
    dataset_sha256: str

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.model.spec.input.dim

    @property
    def theta(self) -> Vector:
        """The pretrained parameters."""
        return self.model.theta

    def crops_of(self, name: str) -> Crops:
        """Return one person's crops (N, H, W, 3)."""
        return np.asarray(self.crops[self.labels == self.people.index(name)])

    def labelled(self, names: Sequence[str], max_images: int | None = None) -> tuple[Crops, NDArray[np.int64]]:
        """Return several people's crops, at most so many of each, with labels 0 ... len(names) - 1."""
        each = [self.crops_of(name)[:max_images] for name in names]
        return np.concatenate(each), np.repeat(np.arange(len(each)), [len(crops) for crops in each])

    def cohort(self, clients: Mapping[str, Sequence[str]], public: Sequence[str] = ()) -> Cohort:
        """Return simulated clients that hold these people, and the public people's faces."""
        held = {client: self.labelled(names) for client, names in clients.items()}
        for crops, _ in held.values():
            crops.flags.writeable = False  # so that they are hashed once in a run
        return Cohort(
            {client: crops for client, (crops, _) in held.items()},
            public=PublicFaces(*self.labelled(public)) if public else None,
            labels={client: labels for client, (_, labels) in held.items()},
        )

    def split(self, seed: int, *counts: int, domain: str = "") -> list[tuple[str, ...]]:
        """Return disjoint groups of so many people, drawn by `seed`; raises EmptyFolderError for too few people.

        With a `domain` they are of those whose name begins with it (`domain_of`).
        """
        people = [name for name in self.people if not domain or domain_of(name) == domain]
        if sum(counts) > len(people):
            raise EmptyFolderError(
                f"the folder holds {len(people)} people{domain and f' of domain {domain}'} and this experiment needs "
                f"{sum(counts)}; name a larger one with --faces, or use --quick"
            )
        order = np.random.default_rng([seed, 1]).permutation(len(people))
        stops = list(itertools.accumulate(counts, initial=0))
        return [tuple(people[i] for i in sorted(order[a:b])) for a, b in itertools.pairwise(stops)]

    def comparisons(self, theta: Vector, names: Sequence[str]) -> Comparisons:
        """Return all comparisons among these people's images."""
        crops, labels = self.labelled(names)
        return all_pairs(self.runtime.embed(theta, crops), labels)

    def verification(self, theta: Vector, names: Sequence[str]) -> dict[str, float]:
        """Return the error rates, TAR at FMR 1e-2 and 1e-3 among them, and the mean cosines."""
        scores = self.comparisons(theta, names)
        return {**error_rates(scores, {"tar_1e-2": 1e-2, "tar_1e-3": 1e-3}), **mean_cosines(scores)}

    def trained_centrally(
        self,
        names: Sequence[str],
        head: Literal["softmax", "cosface", "arcface"],
        local: LocalSpec,
        seed: int,
        *,
        scale: float,
        margin: float,
        start: Literal["random", "mean_feature"] = "mean_feature",
    ) -> Trained:
        """Return what a head over these people makes of the model with all their images in one place: no privacy.

        Class vectors come with it, as its private tensors. `start` is where they begin; what is compared
        with it begins in the same way.
        """
        head_of_all = Head(head, scale, margin, start)
        trainer = Trainer(self.runtime, self.part, head_of_all, local, seed)
        return trainer.trained(self.theta, Faces(*self.labelled(names)))


def domain_of(name: str) -> str:
    """Return the domain of a person who is called DOMAIN_NAME."""
    return name.partition("_")[0]


def error_rates(scores: Comparisons, targets: Mapping[str, float]) -> dict[str, float]:
    """Return counts, EER, and TAR at each target FMR by the name it has (left out where not measurable).

    A model that has collapsed to one point gives an EER of one half, which is what its ties amount to, and TARs of 0:
    what keeps strangers out then keeps everybody out. Left out, it would flatter a mean over seeds.
    """
    found = {"mated": float(scores.num_mated), "non_mated": float(scores.num_non_mated)}
    if not (scores.num_mated and scores.num_non_mated):
        return found
    try:
        curve = det_curve(scores)
    except UndefinedMetricError:
        measurable = (name for name, target in targets.items() if target * scores.num_non_mated >= 1)
        return {**found, "eer": 0.5, **dict.fromkeys(measurable, 0.0)}
    found["eer"] = equal_error_rate(curve).value
    for name, target in targets.items():
        with contextlib.suppress(UndefinedMetricError):
            found[name] = tar_at_fmr(curve, target)
    return found


def mean_cosines(scores: Comparisons) -> dict[str, float]:
    """Return the mean cosine of one person's images, and of different people's."""
    return {"cos_mated": float(scores.mated.mean()), "cos_non_mated": float(scores.non_mated.mean())}


@functools.lru_cache(maxsize=2)
def open_workbench(
    faces: Path | None,
    max_people: int | None = None,
    max_images: MaxImages = None,
    condition: str = "",
    network: str = "sface",
) -> Workbench:
    """Return the workbench for a folder name/*.jpg, or for the shipped synthetic faces where `faces` is None.

    People with fewer than four images are left out; of the others, the first `max_people` by name are taken (a quick
    run needs few), and the first `max_images` of each, or of each in a domain. All of them are in a `condition`, one of
    `simulation.faces.conditions`, where it is named. The recogniser is a `network` of `MODELS`. Features are made by
    the first process that asks, while the others wait.
    """
    chosen = _chosen(faces, max_people, max_images)
    model = MODELS[network][1]()
    read = _read(chosen, model.spec.input)
    crops = in_condition(condition, read.crops) if condition else read.crops
    crops.flags.writeable = False  # so that they are hashed once
    dataset = digest(chosen)
    if condition:
        dataset = hashlib.sha256(f"{dataset} {condition}".encode()).hexdigest()
    return Workbench(
        model,
        model.layout.part(TRAINABLE),
        TorchRuntime(model.spec, model.layout, cache=_features(crops, dataset, network), device=device()),
        crops,
        read.labels,
        read.names,
        dataset,
    )


@functools.lru_cache(maxsize=1)
def open_network(faces: Path | None, max_people: int | None = None, max_images: MaxImages = None) -> Workbench:
    """Return the workbench of the same people whose trained part is that of SFace itself, in its last two blocks.

    What enters those is 512 x 14 x 14 numbers a crop, 401 KB: too many for a disk, so each process makes them anew, and
    keeps up to `NETWORK_BYTES` of them in memory.
    """
    chosen = _chosen(faces, max_people, max_images)
    model = sface()
    read = _read(chosen, model.spec.input)
    runtime = TorchRuntime(model.spec, model.layout, cache_bytes=NETWORK_BYTES, device=device())
    part = model.layout.part(model.spec.trainable)
    return Workbench(model, part, runtime, read.crops, read.labels, read.names, digest(chosen))


def open_small_network(
    faces: Path | None,
    seed: int,
    max_people: int | None = None,
    max_images: int | None = None,
    *,
    losses_on: int = 0,
) -> Workbench:
    """Return the workbench of the same people with a small network that begins at random, and an adapter behind it.

    Its trained part is that network and not the adapter. `losses_on` as in `TorchRuntime`.
    """
    with initialised_from(seed):
        backbone = build_adapted(FACE_INPUTS["sface"], base=build_small_network)
    layout, theta = layout_of(backbone), theta_of(backbone)
    theta.flags.writeable = False
    spec = ModelSpec(
        backbone=backbone.name,
        layout_sha256=layout.sha256,
        input=backbone.input_spec,
        source="random numbers",
        terms="none",
        trainable=TRAINED,
    )
    read, dataset = _read_once(faces, max_people, max_images)
    runtime = TorchRuntime(spec, layout, backbone=backbone, device=device(), losses_on=losses_on)
    return Workbench(
        Model(spec, layout, theta), layout.part(TRAINED), runtime, read.crops, read.labels, read.names, dataset
    )


@functools.lru_cache(maxsize=1)
def _read_once(faces: Path | None, max_people: int | None, max_images: int | None) -> tuple[LabelledCrops, str]:
    """Return the people and their digest, read once a process: each of its networks begins elsewhere, on one input."""
    chosen = _chosen(faces, max_people, max_images)
    read = _read(chosen, FACE_INPUTS["sface"])
    read.crops.flags.writeable = False
    return read, digest(chosen)


def _chosen(faces: Path | None, max_people: int | None, max_images: MaxImages) -> People:
    people = people_of(faces)
    most = dict(max_images) if isinstance(max_images, tuple) else {}
    rest = None if isinstance(max_images, tuple) else max_images
    return {name: people[name][: most.get(domain_of(name), rest)] for name in sorted(people)[:max_people]}


def _read(people: People, spec: FaceInputSpec) -> LabelledCrops:
    first = next(path for files in people.values() for path in files)
    aligned = decode_image(first.read_bytes()).shape[:2] == (spec.height, spec.width)
    return read_people(people, FacePipeline(spec, None, ChoiceRule.CENTRE, aligned=aligned))


def _features(crops: Crops, dataset: str, network: str) -> FeatureCache:
    """Return a cache with the features of these crops; where nothing can be kept privately, an empty one."""
    root = private_folder()
    if root is None:
        return FeatureCache()
    of_network = () if network == "sface" else (network,)  # SFace's lie where they lay when there was no other
    key = hashlib.sha256(json.dumps([FORMAT, TRAINABLE, dataset, *of_network]).encode()).hexdigest()[:20]
    target = root / key
    with held(root / f"{key}.lock"):
        if not target.is_dir():
            making = Path(tempfile.mkdtemp(dir=root))
            try:
                _compute(crops, making, network)
                making.rename(target)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    return KeptFeatures(target, MODELS[network][0])


def _compute(crops: Crops, folder: Path, network: str) -> None:
    """Keep the features of these crops; batches are handed out whole, for a crop's last bits depend on its batch."""
    kept_as, open_model = MODELS[network]
    model = open_model()

    def fill(firsts: NDArray[np.int64]) -> None:
        runtime = TorchRuntime(model.spec, model.layout, cache=KeptFeatures(folder, kept_as))
        for some in (firsts[at : at + _CHUNK] for at in range(0, len(firsts), _CHUNK)):
            runtime.embed(model.theta, crops[some[0] : some[-1] + INFERENCE_BATCH])

    batches = np.arange(0, len(crops), INFERENCE_BATCH)
    num_threads = min(len(os.sched_getaffinity(0)), len(batches))
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(fill, np.array_split(batches, num_threads)))
