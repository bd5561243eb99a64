"""A softmax against everybody by two summed moments: no class embedding is shown, and no public face is needed.

A phone trains its own identity apart from all other phones' without having one of theirs. If their class embeddings
are about Gaussian with mean mu and covariance B, the sum of e^(s z.w_j) over them is about n e^(s z.mu + s^2/2 z'Bz)
(`mien.objectives.losses.moment_softmax`). So the phone needs two moments, which are sums:

    phone   w = mean embedding of its pictures under this round's model, at length 1
            adds w and w w' to its contribution
            w~ = the same under the round before's model, of which the opened sums are
            takes out of the sums what it put in itself: n others, mu = sum w~_j / n, B = sum w~_j w~_j' / n - mu mu'
            local steps on softplus(s z.mu + s^2/2 z'Bz + log n - s (z.w~ - m)), w~, mu and B held fixed
    server  theta takes its step; the two sums go back to everybody in the next round, with the part that they are of

The moments are those of the round before, which ride in its contributions, so that no round is spent on them. In the
first one nothing is known of anybody: others are taken to lie evenly on the sphere, mu = 0 and B = I / D, as many as
the round needs at least. The model moves in each round, as it has to: a phone's pictures go into one opened sum over
one model (decision record 0052).

A phone's own w~ has to be of the same model as the others'. Against the
newer w of its own, all features have a direction in which they get away from everybody's old mean together; they run
along it, and the model is lost (decision record 0059). A phone that is not in the last sum embeds its pictures with
that model too. A phone with several people adds the mean over them, and tells them apart by their own class embeddings.

Suffixes of arrays: N pictures, K own identities, D embedding, P = D (D + 1) / 2 packed elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError, CorruptDataError
from mien.layout import ParameterPart, Vector
from mien.methods import averaging, moments
from mien.methods.averaging import output, update_addends, update_lanes
from mien.methods.base import EARLIER, DeviceInput, DeviceOutput, Objective, Requirements, Runtime, ServerState
from mien.methods.check_reply import told
from mien.methods.fedface import W
from mien.methods.moments import DEVICES, MOMENT, NUMBER, OWN_NUMBER, told_number
from mien.methods.proxies import class_means, one_hot_rows, own_labels
from mien.methods.spreadout import Matrix, device_moment, others_moment, packed_size
from mien.records import BELOW_1, check_limits, positive
from mien.specs import TaskSpec

MEAN: Final = "moment_mean"
SHARED: Final = (MOMENT, NUMBER, DEVICES, MEAN, EARLIER)
"""Reply arrays alike for all devices of a round."""
OBJECTIVE: Final = "moment_softmax"
WHY_SYNCHRONOUS: Final = "devices train against the moments that the last round opened"
REQUIREMENTS: Final = Requirements(objective=OBJECTIVE, shared_reply=SHARED, why_synchronous=WHY_SYNCHRONOUS)


@dataclass(frozen=True)
class EverybodySpec:
    """CosFace's `scale` s and `margin` m in the softmax against everybody."""

    scale: Annotated[float, positive(1e3)] = 16.0
    margin: Annotated[float, BELOW_1] = 0.2

    def __post_init__(self) -> None:
        check_limits(self, "options.everybody.")


def check(task: TaskSpec) -> None:
    """Raise ConfigError for a task whose sums would be seen by somebody whom it does not name, or never be used."""
    moments.check(task, 'options.private_form "everybody"')
    if task.rounds < 2:
        raise ConfigError(
            f'rounds is {task.rounds}, and options.private_form "everybody" trains against moments from the '
            "second on: the first one opens them. Set it to 2 or more"
        )


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution, all sums; raises ConfigError as `check` does."""
    check(task)
    return ContributionLayout((*update_lanes(part), *sum_lanes(task, dim)))


def sum_lanes(task: TaskSpec, dim: int) -> tuple[Lane, ...]:
    """Return the lanes of the summed first and second moment."""
    return moments.summed_lane(task, MEAN, dim), moments.summed_lane(task, MOMENT, packed_size(dim))


# The device half.


@dataclass(frozen=True)
class Opened:
    """The last opened sums as a device sees them: its own class embeddings (K, D) of then, and the others of then.

    `others` is how many phones these are (classes in `moment_correction`), `mean` (D,) and `covariance` (D, D) those of
    their class embeddings.
    """

    own: Vector
    others: int
    mean: Matrix
    covariance: Matrix


def device_round(inp: DeviceInput, runtime: Runtime, spec: EverybodySpec) -> DeviceOutput:
    """Return one device's round: its moments, and its update against everybody once moments have been opened."""
    labels, number = own_labels(inp), told_number(inp, NUMBER)
    w_KD = _class_embeddings(inp, runtime, inp.theta)
    sums = {MEAN: w_KD.mean(axis=0), MOMENT: device_moment(w_KD)}
    layout = contribution_layout(inp.task, inp.part, inp.dim)
    kept = {W: w_KD.reshape(-1), OWN_NUMBER: np.array([number + 1], np.float32)}
    opened = opened_to(inp, runtime, number, len(w_KD)) if number else nothing_opened(inp, w_KD)
    objective = Objective(
        OBJECTIVE,
        fixed={
            "class_embeddings": opened.own,
            "mean": opened.mean.astype(np.float32),
            "covariance": opened.covariance.astype(np.float32),
        },
        per_crop={"target": one_hot_rows(labels, len(w_KD))},
        constants={"log_others": math.log(opened.others), "scale": spec.scale, "margin": spec.margin},
    )
    trained = runtime.train(inp.job(objective))
    return output(layout, {**update_addends(inp, trained), **sums}, kept, trained)


def nothing_opened(inp: DeviceInput, w_KD: Vector) -> Opened:
    """Return what stands for the others before anything is known of them: directions that are drawn evenly."""
    others = max(1, inp.task.cohort.min_reports - 1)
    return Opened(w_KD, others, np.zeros(inp.dim), np.eye(inp.dim) / inp.dim)


def _class_embeddings(inp: DeviceInput, runtime: Runtime, theta: Vector) -> Vector:
    """Return the mean embedding at length 1 of each of the device's people, (K, D)."""
    labels = own_labels(inp)
    return class_means(runtime.embed(theta, inp.crops), labels, int(labels.max(initial=0)) + 1)


def opened_to(inp: DeviceInput, runtime: Runtime, number: int, num_people: int) -> Opened:
    """Return sum number `number` as this device sees it, without its own part.

    Raises CorruptDataError for a server that tells of sums and not the sums themselves, or of none but this device's.
    """
    mean, moment = told(inp.reply, MEAN, (inp.dim,)), told(inp.reply, MOMENT, (packed_size(inp.dim),))
    earlier, own_KD = told(inp.reply, EARLIER, (inp.part.size,)), _own(inp, number)
    devices = told_number(inp, DEVICES)
    others = devices - (own_KD is not None)
    if mean is None or moment is None or earlier is None or others < 1:
        raise CorruptDataError(
            "the server told of sums of moments and not what they are, or of nobody else's; leave the round, tell the "
            "operator"
        )
    own = None if own_KD is None else device_moment(own_KD)
    mu_D = (np.asarray(mean, np.float64) - (0.0 if own_KD is None else own_KD.mean(axis=0))) / others
    covariance_DD = others_moment(moment, own, devices, inp.dim) - np.outer(mu_D, mu_D)
    if own_KD is None or len(own_KD) != num_people:
        own_KD = _class_embeddings(inp, runtime, inp.part.scatter(inp.theta, earlier))
    return Opened(own_KD, others, mu_D, covariance_DD)


def _own(inp: DeviceInput, number: int) -> Vector | None:
    """Return the device's class embeddings (K, D) that are in a sum, by its number; None if none are.

    What a device keeps counts only if the round closed with it: so it knows which sum holds its part.
    """
    kept = inp.private.get(W)
    if kept is None or OWN_NUMBER not in inp.private or int(inp.private[OWN_NUMBER][0]) != number:
        return None
    return kept.reshape(-1, inp.dim)


# The server half.


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round: nothing has been opened."""
    begun = averaging.server_start(task, part, theta)
    return _of_model(replace(begun, arrays={**begun.arrays, **moments.counts(number=0, devices=0)}), part, theta)


def server_step(task: TaskSpec, part: ParameterPart, state: ServerState, total: Total) -> ServerState:
    """Return the state after the step on the mean update, with the moments that this round's devices added up."""
    after = averaging.apply_mean_update(task, part, state, total)
    return _of_model(moments.with_sums(state, after, total, (MEAN, MOMENT)), part, state.theta)


def reply(state: ServerState) -> Arrays:
    """Return the last opened sums and what they are of, the same for all devices."""
    return moments.told_to_all(state, SHARED)


def _of_model(state: ServerState, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state with the part of the model that its sums are of."""
    return replace(state, arrays={**state.arrays, EARLIER: part.gather(theta)})
