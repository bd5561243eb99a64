"""FedGC's correction by three sums: clients correct their classes against everybody else's, and nobody is shown one.

As published the server moves each class embedding away from those of all other clients. For each of them that is a sum
over the others, of which two moments are enough (`mien.methods.spreadout.moment_regulariser`):

    client  W_k, as it kept it, takes the correction's step against the others' moments of the last sum, first of all
            a local round on theta and W_k; W_k is kept as it is trained
            adds K_k / I, sum w / I and sum w w' / I over its K_k classes to its contribution; I is `options.identities`
    server  theta takes its step; the three sums go back to everybody in the next round

A client takes out of the sums what it put in itself: the sum's number tells whether it is in it, and W_k is what it was
then. So W_k and the others' are of the same round, as they are where the server corrects, and the step is at the same
place in the order of steps: between two local rounds of a client (decision record 0093).

Suffixes of arrays: K own classes, D embedding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from mien.contribution import Arrays, Lane, Total
from mien.errors import CorruptDataError
from mien.layout import Vector
from mien.methods import moments
from mien.methods.base import DeviceInput, ServerState
from mien.methods.check_reply import told
from mien.methods.everybody import MEAN, Opened, sum_lanes
from mien.methods.moments import DEVICES, MOMENT, NUMBER, OWN_NUMBER, told_number
from mien.methods.spreadout import device_moment, normalise, unpack_symmetric
from mien.specs import TaskSpec

COUNT: Final = "moment_classes"
SUMS: Final = (COUNT, MEAN, MOMENT)
"""Lanes that are summed, and go back to everybody."""
SHARED: Final = (*SUMS, NUMBER, DEVICES)
"""Reply arrays alike for all devices of a round."""


def lanes(task: TaskSpec, dim: int) -> tuple[Lane, ...]:
    """Return the lanes of the sums."""
    return (Lane(COUNT, 1), *sum_lanes(task, dim))


def addends(w_KD: Vector, most: int) -> Arrays:
    """Return a client's addends: number, sum and second moment of its classes at length 1, by the `most` it may hold.

    So classes count alike, and a client changes the sums by at most sqrt(3) in L2 norm.
    """
    share = np.float32(len(w_KD) / most)
    mean_D = normalise(w_KD).sum(axis=0) / most
    return {
        COUNT: np.array([share], np.float32),
        MEAN: mean_D.astype(np.float32),
        MOMENT: share * device_moment(w_KD),
    }


def kept(inp: DeviceInput) -> Arrays:
    """Return what a client keeps beside its class embeddings: the number of the sum that they are in."""
    return {OWN_NUMBER: np.array([told_number(inp, NUMBER) + 1], np.float32)}


def opened_to(inp: DeviceInput, own_KD: Vector, most: int) -> Opened | None:
    """Return the last sums as a client sees them that kept its classes `own_KD`; None before there is something to do.

    That is before any sum was opened, before the client ever took part, and where it cannot tell whether it is in the
    sum: somebody of it has left. Raises CorruptDataError for a server that tells of sums and not the sums themselves,
    or of none but this client's.
    """
    number = told_number(inp, NUMBER)
    if number < 1 or OWN_NUMBER not in inp.private:
        return None
    told_sums = [told(inp.reply, lane.name, (lane.size,)) for lane in lanes(inp.task, inp.dim)]
    is_there = int(inp.private[OWN_NUMBER][0]) == number
    clients = told_number(inp, DEVICES) - is_there
    if any(values is None for values in told_sums) or clients < 1:
        raise CorruptDataError(
            "the server told of sums of classes and not what they are, or of nobody else's; leave the round, tell the "
            "operator"
        )
    own = addends(own_KD, most)
    count, mean_D, moment_P = (
        np.asarray(values, np.float64) - (own[name] if is_there else 0.0)
        for name, values in zip(SUMS, told_sums, strict=True)
    )
    # Noise, or a liar, may make it any number: below one class of all others together there is nothing to divide by.
    share = max(float(count[0]), 1.0 / most)
    mu_D = mean_D / share
    covariance_DD = unpack_symmetric(moment_P, inp.dim) / share - np.outer(mu_D, mu_D)
    return Opened(own_KD, round(share * most), mu_D, covariance_DD)


# The server half.


def with_sums(task: TaskSpec, before: ServerState, after: ServerState, total: Total) -> ServerState:
    """Return the state after a round with its sums, by the number after that of `before`.

    Under differential privacy a lane of one element is a metric, which no client sends. The classes' number is then
    told by the trace of their second moment, which is 1 for each vector of length 1, and has noise as it has.
    """
    told_next = moments.with_sums(before, after, total, SUMS)
    if not task.privacy.dp.is_on:
        return told_next
    trace = np.trace(unpack_symmetric(total[MOMENT], len(total[MEAN])))
    return replace(told_next, arrays={**told_next.arrays, COUNT: np.array([trace], np.float32)})
