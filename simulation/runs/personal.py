"""Clients' own models on clients' own people: personalised verification (1:1) and identification (1:N).

Source: Liu et al., FedFR (AAAI 2022), Tables 1 to 3; the protocols are `mien.evaluation.personalised`'s. Every client
is measured with its own model on the test images of all clients' people, and has enrolled what it trained on.
Legend: N test images, G gallery images, D embedding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, EmptyFolderError, UndefinedMetricError
from mien.evaluation import (
    OverClients,
    ScoreHistogram,
    cmc,
    det_curve,
    fedfr_pr_at_far,
    fedfr_tpr_at_fpr,
    personalised_search,
    personalised_verification,
)
from mien.evaluation.identification import tpir_at_fpir
from mien.evaluation.verification import tar_at_fmr
from mien.layout import ParameterPart
from mien.methods.base import Crops, ServerState
from mien.methods.personal import FeatureRuntime, PersonalModel, distil, fine_tune, personal_model
from simulation.engines.base import Cohort, RoundWork
from simulation.faces.partitions import Holding, Partition
from simulation.faces.sources import ClientFaces, Lazy, Reader, check_kept
from simulation.runs.spec import PersonalSpec, Plan


@dataclass(frozen=True)
class Enrolled:
    """A client's images (G, H, W, 3) that it trained on and enrols, with their people's numbers among all clients'."""

    crops: Crops = field(repr=False)
    labels: NDArray[np.int64]


def personal_figures(
    runtime: FeatureRuntime,
    clients: Mapping[str, Enrolled],
    models: Mapping[str, PersonalModel],
    test_crops: Crops,
    test_labels: NDArray[np.int64],
    targets: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, int]]:
    """Return means over clients of the personalised protocols at each target, and the worst client's of the first;
    and of each figure on how many clients it could not be measured, where there are any.

    `tar` and `tpir` are the standard forms, `tpr` and `pr` the exact replica of FedFR's released code. Galleries hold
    the images that were trained on. What a client's images cannot measure is left out of its mean, and so is a client
    none of whose people has both an enrolled image and a test image (`clients` may raise EmptyFolderError for it).
    """
    names = ["rank1", *(f"{kind}_{name}" for kind in ("tar", "tpir", "tpr", "pr") for name in targets)]
    values: dict[str, list[float]] = {name: [] for name in names}
    tested = set(test_labels.tolist())
    for client in clients:
        try:
            enrolled = clients[client]
        except EmptyFolderError:
            continue
        people = tested & set(enrolled.labels.tolist())
        if not people:
            continue
        tests_ND = models[client].embed(runtime, test_crops)
        gallery_GD = models[client].embed(runtime, enrolled.crops)
        for name, value in _one_client(tests_ND, test_labels, gallery_GD, enrolled.labels, people, targets).items():
            values[name].append(value)
    found = {name: OverClients.of(each) for name, each in values.items() if each}
    worst = {f"{name}_min": each.minimum for name, each in found.items() if "tar" in name}
    left_out = {name: len(clients) - len(each) for name, each in values.items() if len(each) < len(clients)}
    return {name: each.mean for name, each in found.items()} | worst, left_out


def _one_client(
    tests_ND: NDArray[np.float32],
    test_labels: NDArray[np.int64],
    gallery_GD: NDArray[np.float32],
    gallery_labels: NDArray[np.int64],
    people: Collection[int],
    targets: Mapping[str, float],
) -> dict[str, float]:
    """Return what a client's images can measure; `people` are those of its gallery who have test images."""
    found = dict[str, float]()
    scores = personalised_verification(tests_ND, test_labels, people)
    for name, target in targets.items():
        with contextlib.suppress(UndefinedMetricError):
            found[f"tar_{name}"] = 0.0 if _has_collapsed(scores) else tar_at_fmr(det_curve(scores), target)
        with contextlib.suppress(UndefinedMetricError):
            (found[f"tpr_{name}"],) = fedfr_tpr_at_fpr(tests_ND, test_labels, people, [target])
        with contextlib.suppress(UndefinedMetricError, ConfigError):  # the latter for a rank beyond all scores
            (found[f"pr_{name}"],) = fedfr_pr_at_far(tests_ND, test_labels, gallery_GD, gallery_labels, [target])
    with contextlib.suppress(UndefinedMetricError):
        searched = personalised_search(tests_ND, test_labels, gallery_GD, gallery_labels)
        found["rank1"] = float(cmc(searched, 1)[0])
        for name, target in targets.items():
            with contextlib.suppress(UndefinedMetricError):
                found[f"tpir_{name}"] = tpir_at_fpir(searched, target)
    return found


def _has_collapsed(scores: ScoreHistogram) -> bool:
    """Return whether mated and non-mated scores all share one bin: whoever keeps strangers out then keeps all out."""
    are_both = bool(scores.mated.any() and scores.non_mated.any())
    return are_both and int(((scores.mated + scores.non_mated) > 0).sum()) == 1


def check(plan: Plan, image_bytes: int) -> None:
    """Raise ConfigError where clients' people cannot be compared with others, or where memory cannot hold the probes.

    What clients trained on is read client by client.
    """
    if plan.spec.personal is None:
        return
    people = {each.identity for held in plan.partition.clients.values() for each in held}
    if len(people) < 2:
        raise ConfigError("[personal] compares clients' people with each other; give the partition two or more")
    probes = [each for held in plan.partition.probes.values() for each in held]
    check_kept(
        "[personal] keeps the probes of all clients' people",
        probes,
        image_bytes,
        "partition.identities or probe_images",
    )


def measured_personally(
    plan: Plan,
    state: ServerState,
    cohort: Cohort,
    part: ParameterPart,
    runtime: FeatureRuntime,
    faces: ClientFaces,
    reader: Reader,
) -> dict[str, Any]:
    """Return what a run's clients have of its end: which model each uses, how many have one, and the figures.

    `left_out` says of each figure how many clients it could not be measured on. `cohort` is that of the last round. A
    client that took part in no round uses the global model.
    """
    spec, partition = plan.spec.personal, plan.partition
    assert spec is not None
    people = {each.identity for held in partition.clients.values() for each in held}
    number = {name: i for i, name in enumerate(sorted(people))}
    clients = Lazy(dict.fromkeys(sorted(partition.clients)), lambda client: _enrolled(partition, faces, client, number))
    probes = [each for client in clients for each in partition.probes[client]]
    test_crops, places = _read_or_nothing(reader, probes)
    test_labels = np.array([number[each.identity] for each in probes], np.int64)[places]
    rest, have_own = PersonalModel(state.theta), [] if spec.model == "global" else [*clients.keys() & cohort.private]
    own = {
        client: _own_model(spec, plan, state, cohort, part, runtime, client, reader.spec.dim)
        for client in sorted(have_own)
    }
    targets = {f"{target:g}": target for target in plan.spec.evaluation.targets}
    used = {client: own.get(client, rest) for client in clients}
    figures, left_out = personal_figures(runtime, clients, used, test_crops, test_labels, targets)
    return {
        "model": spec.model,
        "clients": len(clients),
        "own_models": len(own),
        "figures": figures,
        "left_out": left_out,
    }


def _enrolled(partition: Partition, faces: ClientFaces, client: str, number: Mapping[str, int]) -> Enrolled:
    """Return what a client trained on; raises EmptyFolderError where none of its images gives a face."""
    crops, places = faces.read(client)
    return Enrolled(crops, np.array([number[each.identity] for each in partition.clients[client]], np.int64)[places])


def _read_or_nothing(reader: Reader, held: Sequence[Holding]) -> tuple[Crops, NDArray[np.int64]]:
    """Return what `reader.read` does, and no crop where none of the images gives a face."""
    try:
        return reader.read(tuple(held))
    except EmptyFolderError:
        return np.empty((0, reader.spec.height, reader.spec.width, 3), np.uint8), np.empty(0, np.int64)


def _own_model(
    spec: PersonalSpec,
    plan: Plan,
    state: ServerState,
    cohort: Cohort,
    part: ParameterPart,
    runtime: FeatureRuntime,
    client: str,
    dim: int,
) -> PersonalModel:
    if spec.model in ("local", "branch"):
        return personal_model(part, state.theta, cohort.private[client], "local" if spec.model == "local" else "branch")
    task = plan.spec.task
    stage_two = replace(task, local=replace(task.local, epochs=spec.epochs, steps=0))
    work = RoundWork(stage_two, part, dim, state, cohort, (client,), task.rounds + 1)
    adapt = fine_tune if spec.model == "fine_tune" else distil
    return adapt(work.device_input(client), runtime)
