"""The second moment of a cohort's class embeddings as a summed lane: what devices add, open again and step against.

Every few rounds each device adds the packed second moment of its class embeddings to a lane of its own; the sum goes
back to all devices in the server's reply; a device takes its own addend out and moves its embeddings against the rest.
No single embedding leaves a device. But a sum over a few hundred people tells whether somebody with a known embedding
is among them (decision record 0015), so that a task has to say so in `privacy.reveals`, or
promise differential privacy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from mien.contribution import Arrays, Lane, Total
from mien.errors import ConfigError, CorruptDataError
from mien.layout import ParameterPart, Vector
from mien.methods import averaging
from mien.methods.base import DeviceInput, ServerState
from mien.methods.check_reply import told
from mien.methods.proxies import reveals_class_embeddings
from mien.methods.spreadout import MomentSpec, device_moment, moment_step, others_moment, packed_size, shrink_noise
from mien.specs import TaskSpec

MOMENT: Final = "moment"
NUMBER: Final = "moment_number"
DEVICES: Final = "moment_devices"
WANTED: Final = "moment_wanted"
SHARED: Final = (MOMENT, NUMBER, DEVICES, WANTED)
"""Reply arrays alike for all devices: a server that asked one alone for its moment would see its template."""
OWN: Final = "own_moment"
OWN_NUMBER: Final = "own_moment_number"
REVEALS: Final = "class_moment"
CLIP: Final = 1.0 + 2.0**-10
"""L2 clip of a lane that is at most 1 long of each device, with room for rounding."""


def check(task: TaskSpec, what: str) -> None:
    """Raise ConfigError for a task whose moments would be seen by somebody whom it does not name; `what` sums them."""
    if not task.privacy.is_masked:
        raise ConfigError(
            f"{what} sums second moments of class embeddings, and privacy.secure_aggregation is off: the coordinator "
            "would see each phone's own, which is its owner's template. Turn secure aggregation on"
        )
    if task.privacy.groups > 1:
        raise ConfigError(
            f"privacy.groups is {task.privacy.groups}; {what} needs one sum over the whole cohort, because smaller "
            "sums of second moments tell more of each phone: set privacy.groups to 1"
        )
    if REVEALS not in task.privacy.reveals and not task.privacy.dp.is_on:
        raise ConfigError(
            f"{what} shows the coordinator the sum of the phones' second moments, which tells whether a known face is "
            f'among a few hundred; agree with privacy.reveals = ["{REVEALS}"], or promise privacy.dp'
        )


def summed_lane(task: TaskSpec, name: str, size: int) -> Lane:
    """Return the lane of sums of what is at most 1 long of each device.

    It has a clip of its own that cuts nothing, so that `privacy.l2_clip` is the update's alone: a device takes out of
    the sums what it made, which has to be what it sent. Under differential privacy, whose noise is as large as all that
    one device may send, one clip is for both.
    """
    return Lane(name, size, 0.0 if task.privacy.dp.is_on else CLIP)


def lanes(task: TaskSpec, spec: MomentSpec, dim: int) -> tuple[Lane, ...]:
    """Return the summed lane of a task whose moments are on, nothing otherwise; raises ConfigError as `check` does."""
    if not spec.is_on:
        return ()
    check(task, "options.moment")
    if task.privacy.dp.is_on and spec.emulate_noise:
        raise ConfigError("options.moment.emulate_noise is for simulations; privacy.dp adds real noise: remove it")
    return (summed_lane(task, MOMENT, packed_size(dim)),)


# The device half.


def addends(inp: DeviceInput, spec: MomentSpec, w_KD: Vector) -> tuple[Arrays, Arrays]:
    """Return the lane and what the device keeps of it: zeros, and what it kept before, in a round that asks for none.

    What is kept counts only if the round closes with the device in it, as all private state does: so a device knows
    which sum holds its addend.
    """
    if not spec.is_on:
        return {}, {}
    kept = {name: inp.private[name] for name in (OWN, OWN_NUMBER) if name in inp.private}
    if told_number(inp, WANTED) != 1:
        return {MOMENT: np.zeros(packed_size(inp.dim), np.float32)}, kept
    own = device_moment(w_KD)
    return {MOMENT: own}, {OWN: own, OWN_NUMBER: np.array([told_number(inp, NUMBER) + 1], np.float32)}


def step(inp: DeviceInput, spec: MomentSpec, w_KD: Vector) -> Vector:
    """Return the class embeddings (K, D) after the device's own step against the others' last opened moment."""
    number, num_devices = told_number(inp, NUMBER), told_number(inp, DEVICES)
    if not spec.is_on or number < 1 or num_devices < 1:
        return w_KD
    own = inp.private.get(OWN) if _number(inp.private, OWN_NUMBER) == number else None
    opened = told(inp.reply, MOMENT, (packed_size(inp.dim),))
    if opened is None:
        raise CorruptDataError(
            f"the server told of a sum and not {MOMENT!r} itself; leave the round, tell the operator"
        )
    moment_DD = others_moment(opened, own, num_devices, inp.dim)
    others = num_devices - (own is not None)
    return moment_step(w_KD, shrink_noise(moment_DD, spec.noise / max(1, others)), lr=spec.lr, steps=spec.steps)


def told_number(inp: DeviceInput, name: str) -> int:
    """Return a number of the server's reply, 0 where it is absent; raises as `told`."""
    values = told(inp.reply, name, (1,))
    return 0 if values is None else int(values[0])


def _number(arrays: Arrays, name: str) -> int:
    return int(arrays[name][0]) if name in arrays else 0


def why_synchronous(task: TaskSpec, spec: MomentSpec) -> str:
    """Return why each round needs the one before it, if it does."""
    if reveals_class_embeddings(task):
        return "the server answers the class embeddings of one round in the next; its private form has none of that"
    if spec.is_on:
        return "devices move against the moments that the last round opened; set options.moment.every to 0"
    return ""


# The server half.


def server_start(spec: MomentSpec, task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first round, which asks for the first sum."""
    begun = averaging.server_start(task, part, theta)
    asked = _numbers(number=0, devices=0, wanted=True) if spec.is_on else {}
    return replace(begun, arrays={**begun.arrays, **asked})


def server_step(spec: MomentSpec, task: TaskSpec, part: ParameterPart, state: ServerState, total: Total) -> ServerState:
    """Return the state after the step on the mean update, with the sum if one was asked for."""
    after = averaging.apply_mean_update(task, part, state, total)
    return replace(after, arrays={**after.arrays, **_after_round(task, spec, state, total)})


def _after_round(task: TaskSpec, spec: MomentSpec, state: ServerState, total: Total) -> Arrays:
    """Return the server's arrays after a round: the sum if one was asked for, and whether the next round asks."""
    if not spec.is_on:
        return {}
    wanted_next = (state.rounds + 1) % spec.every == 0
    if _number(state.arrays, WANTED) != 1:
        return {**told_to_all(state), WANTED: np.array([wanted_next], np.float32)}
    opened = total[MOMENT]
    if spec.emulate_noise:
        opened = opened + spec.noise * np.random.default_rng([task.seed, state.rounds]).standard_normal(opened.shape)
    numbers = _numbers(number=_number(state.arrays, NUMBER) + 1, devices=total.num_reports, wanted=wanted_next)
    return {**numbers, MOMENT: opened.astype(np.float32)}


def reply(state: ServerState, device: str) -> Arrays:
    """Return the device's own class embeddings as the server moved them, and the sum's arrays, the same for all."""
    return {**told_to_all(state), **state.revealed.get(device, {})}


def told_to_all(state: ServerState, names: tuple[str, ...] = SHARED) -> Arrays:
    """Return those of the reply's arrays alike for all devices that the server has: nothing before it has any."""
    return {name: state.arrays[name] for name in names if name in state.arrays}


def counts(*, number: int, devices: int) -> Arrays:
    """Return what a sum is known by: its number, 0 before any was opened, and over how many devices it is."""
    return {NUMBER: np.array([number], np.float32), DEVICES: np.array([devices], np.float32)}


def with_sums(before: ServerState, after: ServerState, total: Total, names: tuple[str, ...]) -> ServerState:
    """Return the state after a round with its sums of the lanes `names`, by the number after that of `before`."""
    sums = {name: total[name].astype(np.float32) for name in names}
    numbers = counts(number=_number(before.arrays, NUMBER) + 1, devices=total.num_reports)
    return replace(after, arrays={**after.arrays, **sums, **numbers})


def _numbers(*, number: int, devices: int, wanted: bool) -> Arrays:
    return {**counts(number=number, devices=devices), WANTED: np.array([wanted], np.float32)}
