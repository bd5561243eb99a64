"""Clients' own models on clients' own people: personalised verification (1:1) and identification (1:N).

Source: Liu et al., FedFR (AAAI 2022), Tables 1 to 3; the protocols are `mien.evaluation.personalised`'s. Every client
is measured with its own model on the test images of all clients' people, and has enrolled what it trained on.
Legend: N test images, G gallery images, D embedding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation import (
    OverClients,
    ScoreHistogram,
    cmc,
    det_curve,
    fedfr_pr_at_far,
    fedfr_tpr_at_fpr,
    open_set_at_fpir,
    personalised_search,
    personalised_verification,
    point_at_fmr,
)
from mien.layout import ParameterPart
from mien.methods.base import Crops, ServerState
from mien.methods.personal import FeatureRuntime, PersonalModel, distil, fine_tune, personal_model
from simulation.engines.base import Cohort, RoundWork
from simulation.faces.sources import Reader
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
) -> dict[str, float]:
    """Return means over clients of the personalised protocols at each target, and the worst client's of the first.

    `tar` and `tpir` are the standard forms, `tpr` and `pr` the exact replica of FedFR's released code. Galleries hold
    the images that were trained on. What a client's images cannot measure is left out of its mean.
    """
    values: dict[str, list[float]] = {}
    for client, enrolled in clients.items():
        tests_ND = models[client].embed(runtime, test_crops)
        gallery_GD = models[client].embed(runtime, enrolled.crops)
        for name, value in _one_client(tests_ND, test_labels, gallery_GD, enrolled.labels, targets).items():
            values.setdefault(name, []).append(value)
    found = {name: OverClients.of(each).mean for name, each in values.items()}
    return found | {f"{name}_min": OverClients.of(each).minimum for name, each in values.items() if "tar" in name}


def _one_client(
    tests_ND: NDArray[np.float32],
    test_labels: NDArray[np.int64],
    gallery_GD: NDArray[np.float32],
    gallery_labels: NDArray[np.int64],
    targets: Mapping[str, float],
) -> dict[str, float]:
    people = set(gallery_labels.tolist())
    scores = personalised_verification(tests_ND, test_labels, people)
    searched = personalised_search(tests_ND, test_labels, gallery_GD, gallery_labels)
    found = {"rank1": float(cmc(searched, 1)[0])}
    for name, target in targets.items():
        with contextlib.suppress(UndefinedMetricError):
            found[f"tar_{name}"] = 0.0 if _has_collapsed(scores) else point_at_fmr(det_curve(scores), target).tar
        with contextlib.suppress(UndefinedMetricError):
            found[f"tpir_{name}"] = open_set_at_fpir(searched, target).tpir
        (found[f"tpr_{name}"],) = fedfr_tpr_at_fpr(tests_ND, test_labels, people, [target])
        (found[f"pr_{name}"],) = fedfr_pr_at_far(tests_ND, test_labels, gallery_GD, gallery_labels, [target])
    return found


def _has_collapsed(scores: ScoreHistogram) -> bool:
    """Return whether all scores are equal: whoever keeps strangers out then keeps everybody out."""
    return int(((scores.mated + scores.non_mated) > 0).sum()) == 1


def check(plan: Plan) -> None:
    """Raise ConfigError where clients' people cannot be compared with others."""
    people = {each.identity for held in plan.partition.clients.values() for each in held}
    if plan.spec.personal is not None and len(people) < 2:
        raise ConfigError("[personal] compares clients' people with each other; give the partition two or more")


def measured_personally(
    plan: Plan, state: ServerState, cohort: Cohort, part: ParameterPart, runtime: FeatureRuntime, reader: Reader
) -> dict[str, Any]:
    """Return what a run's clients have of its end: which model each uses, how many have one, and the figures.

    `cohort` is that of the last round. A client that took part in no round uses the global model.
    """
    spec, partition = plan.spec.personal, plan.partition
    assert spec is not None
    people = {each.identity for held in partition.clients.values() for each in held}
    number = {name: i for i, name in enumerate(sorted(people))}
    clients, tests, test_labels = dict[str, Enrolled](), list[Crops](), list[NDArray[np.int64]]()
    for client, held in sorted(partition.clients.items()):
        crops, labels = reader.read(held)
        clients[client] = Enrolled(crops, np.array([number[each.identity] for each in held])[labels])
        probes = partition.probes[client]
        crops, labels = reader.read(probes)
        tests.append(crops)
        test_labels.append(np.array([number[each.identity] for each in probes])[labels])
    rest, have_own = PersonalModel(state.theta), [] if spec.model == "global" else [*clients.keys() & cohort.private]
    own = {
        client: _own_model(spec, plan, state, cohort, part, runtime, client, reader.spec.dim)
        for client in sorted(have_own)
    }
    targets = {f"{target:g}": target for target in plan.spec.evaluation.targets}
    used = {client: own.get(client, rest) for client in clients}
    figures = personal_figures(runtime, clients, used, np.concatenate(tests), np.concatenate(test_labels), targets)
    return {"model": spec.model, "clients": len(clients), "own_models": len(own), "figures": figures}


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
