"""A million virtual phones' statistics in cohorts of 1,000: what their total says, what a phone and the server pay.

Virtual phones hold one person of four pictures each, whose features are drawn of two normal distributions like those
that SFace's adapter sees. Their sums are worked out a cohort at a time; the first cohort is summed by the method's
device half, phone by phone, too, and must be the same. The server's half is the method's own. Quick: 20 cohorts of 100.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import _common
from mien.contribution import Total
from mien.layout import ParameterEntry, ParameterLayout, ParameterPart
from mien.methods.base import IN_TOTAL, DeviceInput, Embeddings
from mien.methods.form_choice import drawn_pairs, predicted_eer
from mien.methods.spreadout import pack_symmetric, packed_size
from mien.methods.statistics import COUNTS, MEAN, SECOND, STATISTICS, WITHIN, StatisticsOptions
from mien.specs import CohortSpec, PrivacySpec, TaskSpec
from simulation.fleet.costs import round_cost
from simulation.fleet.profile import read_profile

DIM: Final = 128
PICTURES: Final = 4
LONGEST: Final = 20.0
CLIP: Final = StatisticsOptions().within_clip
TOLD: Final = (1, 10, 100, 1000)
"""Cohorts after which the map is compared with that of the true distributions."""


class Given:
    """A runtime whose features are given."""

    def __init__(self) -> None:
        self.given: NDArray[np.float32] = np.zeros((0, DIM), np.float32)

    def features(self, *_: object) -> Embeddings:
        """Return the features."""
        return self.given


def main() -> None:
    """Run the benchmark from the command line."""
    parser = _common.options("statistics", (__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cohorts", type=int, help="cohorts; default: 1000, or 20 with --quick")
    parser.add_argument("--cohort-size", type=int, help="phones of each; default: 1000, or 100 with --quick")
    args = parser.parse_args()
    _common.run(lambda: benchmark(args), only_json=args.json)


def benchmark(args: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures that the benchmark prints."""
    cohorts, size = args.cohorts or (20 if args.quick else 1000), args.cohort_size or (100 if args.quick else 1000)
    task = TaskSpec(
        "statistics",
        method="statistics",
        rounds=cohorts,
        trainable=("adapter.*",),
        cohort=CohortSpec(size, size),
        privacy=PrivacySpec(min_cohort=size, max_weight=1, reveals=("class_moment",)),
        options={"form": "plda", "shrinkage": 0.02, "min_people": 3, "max_people": 1, "longest": LONGEST},
    )
    part, layout = _part(), STATISTICS.contribution_layout(task, _part(), DIM)
    theta = np.concatenate([np.eye(DIM).reshape(-1), np.zeros(DIM)]).astype(np.float32)
    truth = _truth()
    pairs, rng = drawn_pairs(*truth), np.random.default_rng(1)
    state, rows = STATISTICS.server_start(task, part, theta), list[dict[str, Any]]()
    draws_s = steps_s = phone_s = 0.0
    for number in range(1, cohorts + 1):
        began = time.process_time()
        x_NPD = _cohort(rng, truth, size)
        total = Total(layout, np.concatenate([np.full(2, float(size)), *_sums(x_NPD)]), size)
        draws_s += time.process_time() - began
        if number == 1:
            phone_s = _check(task, part, theta, x_NPD, total)
        began = time.process_time()
        state = STATISTICS.server_step(task, part, state, total, {})
        steps_s += time.process_time() - began
        if number in TOLD or number == cohorts:
            _common.progress(f"{number * size:,} phones")
            values = part.gather(state.theta).astype(np.float64)
            eer = predicted_eer(pairs, values[: DIM * DIM].reshape(DIM, DIM), values[DIM * DIM :] / LONGEST)
            rows.append({"phones": number * size, "eer": eer})
    stages = round_cost(task, read_profile(None).work).stages
    return {
        "benchmark": "statistics",
        "quick": args.quick,
        "phones": cohorts * size,
        "cohorts": cohorts,
        "counted": int(state.revealed[IN_TOTAL]["num_phones"][0]),
        "eer_before": predicted_eer(pairs, np.eye(DIM), np.zeros(DIM)),
        "phone_sent_bytes": sum(each.sent for each in stages.values()),
        "phone_received_bytes": sum(each.received for each in stages.values()),
        "phone_addends_ms": 1000 * phone_s,
        "server_step_ms": 1000 * steps_s / cohorts,
        "virtual_phone_us": 1e6 * draws_s / (cohorts * size),
        "total_bytes": state.revealed[IN_TOTAL]["sum"].nbytes,
        "rows": rows,
        "machine": _common.machine(),
        "commit": _common.commit(),
        "command": _common.command(),
    }


def _part() -> ParameterPart:
    entries = ParameterEntry("adapter.weight", (DIM, DIM)), ParameterEntry("adapter.bias", (DIM,))
    return ParameterLayout(entries).part(("adapter.*",))


def _truth() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return mu, W and B in units of the longest features: as long and as wide as SFace's on rendered faces, about."""
    rng = np.random.default_rng(0)
    turn_DD = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    within_D, between_D = 1.6e-3 * np.geomspace(8.0, 0.25, DIM), 4e-4 * np.geomspace(4.0, 0.25, DIM)
    mean_D = rng.standard_normal(DIM) * 0.4 / np.sqrt(DIM)
    return mean_D, (turn_DD * within_D) @ turn_DD.T, np.diag(between_D)


def _cohort(rng: np.random.Generator, truth: tuple[NDArray[np.float64], ...], size: int) -> NDArray[np.float64]:
    """Return features (N, PICTURES, D) of a cohort of phones, no longer than 1."""
    mean_D, within_DD, between_DD = truth
    person_N1D = mean_D + rng.standard_normal((size, 1, DIM)) @ np.linalg.cholesky(between_DD).T
    x_NPD = person_N1D + rng.standard_normal((size, PICTURES, DIM)) @ np.linalg.cholesky(within_DD).T
    return np.asarray(x_NPD / np.maximum(1.0, np.linalg.norm(x_NPD, axis=2, keepdims=True)))


def _sums(x_NPD: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Return what these phones' lanes add up to."""
    size = len(x_NPD)
    mean_ND = x_NPD.mean(axis=1)
    offset_NPD = x_NPD - mean_ND[:, None]
    gram_NPP = offset_NPD @ offset_NPD.transpose(0, 2, 1) / (PICTURES - 1) / CLIP
    cut_N = np.maximum(1.0, np.linalg.norm(gram_NPP, axis=(1, 2)))  # a scatter is as long as its Gram matrix
    flat_MD = (offset_NPD / np.sqrt(cut_N * (PICTURES - 1) * CLIP)[:, None, None]).reshape(-1, DIM)
    counts = np.array([size, size, size / PICTURES])
    return counts, mean_ND.sum(axis=0), _packed(mean_ND.T @ mean_ND), _packed(flat_MD.T @ flat_MD)


def _packed(symmetric_DD: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(pack_symmetric(symmetric_DD))


def _check(
    task: TaskSpec, part: ParameterPart, theta: NDArray[np.float32], x_NPD: NDArray[np.float64], total: Total
) -> float:
    """Return processor seconds of a phone's addends; asserts that phones by themselves add up to the cohort's total."""
    runtime, one_by_one = Given(), Total.empty(total.layout)
    crops = np.zeros((PICTURES, 1, 1, 3), np.uint8)
    inp = DeviceInput(task, part, DIM, theta, crops)
    began = time.process_time()
    for x_PD in x_NPD:
        runtime.given = (LONGEST * x_PD).astype(np.float32)
        one_by_one = one_by_one.plus(STATISTICS.device_round(inp, runtime).contribution)  # type: ignore[arg-type]
    seconds = (time.process_time() - began) / len(x_NPD)
    for lane, length in ((COUNTS, 3), (MEAN, DIM), (SECOND, packed_size(DIM)), (WITHIN, packed_size(DIM))):
        assert len(total[lane]) == length
        np.testing.assert_allclose(total[lane], one_by_one[lane], rtol=1e-5, atol=1e-4 * len(x_NPD) ** 0.5)
    return seconds


if __name__ == "__main__":
    main()
