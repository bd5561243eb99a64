"""FedFace as published, Algorithm 1: one identity a phone, which shows the server its class embedding.

Source: Aggarwal, Zhou, Jain, "FedFace: Collaborative Learning of Face Recognition Model" (2021). Lines are numbered as
there; lines 1, 3 to 5, 8 and 11, the loops over rounds and clients, are the coordinator's. From w_i a face can be told,
so that a task has to ask for this form: `privacy.reveals = ["class_embeddings"]`. `fedface_private` has the forms in
which w_i stays, and the method's entry with both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.layout import ParameterPart
from mien.methods.averaging import (
    HingeOptions,
    apply_mean_update,
    mean_feature,
    output,
    update_addends,
    update_lanes,
)
from mien.methods.base import DeviceInput, DeviceOutput, Objective, Runtime, ServerState, Trained
from mien.methods.check_reply import told
from mien.methods.spreadout import PAPER, RELEASED_CODE, SpreadOutSpec, spread_out
from mien.specs import TaskSpec

W: Final = "class_embedding"


@dataclass(frozen=True)
class PublishedOptions(HingeOptions):
    """`margin` m of the positive hinge (eq 7) and the `spread_out` of line 10 (eq 9).

    `preset` takes the spread-out from the paper or from its released code instead.
    """

    preset: Literal["own", "paper", "released_code"] = "own"
    spread_out: SpreadOutSpec = field(default_factory=SpreadOutSpec)

    @property
    def server_spread_out(self) -> SpreadOutSpec:
        """Server's spread-out step on the class embeddings that it was shown."""
        return {"own": self.spread_out, "paper": PAPER, "released_code": RELEASED_CODE}[self.preset]


def contribution_layout(part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes of a contribution: sums, and w_i in clear."""
    return ContributionLayout(update_lanes(part), (Lane(W, dim),))


def device_round(inp: DeviceInput, runtime: Runtime, options: PublishedOptions) -> DeviceOutput:
    """Return the i-th client's round: lines 2, 6 and 7."""
    trained = positive_step(inp, runtime, options.margin)
    w = trained.private[W]
    # 7: (theta_i, w_i) goes back to the server, theta_i as the addend n_i (theta_i - theta), w_i in clear.
    addends = {**update_addends(inp, trained), W: w}
    return output(contribution_layout(inp.part, inp.dim), addends, {W: w}, trained)


def positive_step(inp: DeviceInput, runtime: Runtime, margin: float) -> Trained:
    """Return theta and w_i after lines 2 and 6; the server may have spread w_i out (line 4)."""
    answered = told(inp.reply, W, (inp.dim,))
    w = inp.private.get(W) if answered is None else answered
    if w is None:
        # 2: at first participation w_i = 1/n_i sum_j f(x_j), at length 1.
        w = mean_feature(runtime, inp.theta, inp.crops)
    # 6: (theta_i, w_i) <- (theta, w_i) - eta grad L_pos, L_pos = 1/n_i sum_j max(0, m - w_i f(x_j))^2.
    positive = Objective("positive_hinge", private={W: w}, constants={"margin": margin}, unit_norm=(W,))
    return runtime.train(inp.job(positive))


def server_step(
    task: TaskSpec,
    part: ParameterPart,
    state: ServerState,
    total: Total,
    revealed: Mapping[str, Arrays],
    options: PublishedOptions,
) -> ServerState:
    """Return the state after lines 9 and 10; the W of absent clients takes part in line 10 as it was kept."""
    # 9: theta <- 1/n sum_i n_i theta_i, and W = [w_1 ... w_C].
    after = apply_mean_update(task, part, state, total)
    shown = {**state.revealed, **revealed}
    devices = sorted(shown)
    # 10: W <- W - lambda grad reg_sp(W), at length 1.
    w_CD = spread_out(np.stack([shown[device][W] for device in devices]), options.server_spread_out)
    return replace(after, revealed={device: {W: w} for device, w in zip(devices, w_CD, strict=True)})
