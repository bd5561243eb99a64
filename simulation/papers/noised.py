"""Summed statistics under differential privacy, and with a phone that lies: `python -m simulation.papers.noised`.

Phones hold one person of four to six pictures. Where more phones are asked for than there are people, people are drawn
with replacement, and of each their pictures anew: a bootstrap, whose sums are those of so many phones of this
population, though not of so many different people. Addends, rounding, noise, the check of the sum and the map are the
product's own (`mien/methods/statistics.py`, `mien/secagg`); only masks are left out. Error rates are over all pairs of
pictures of people who hold no phone.

A liar adds scatter along the directions in which people differ most, so that the map shortens them: as much as a phone
may add that keeps to its clip, and as much as the server's check of the sum lets pass. The same with the cohort dealt
into groups, of whose sums each element's median is taken; no task may ask for that, since smaller sums tell more.

Suffixes: N pictures, D features.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.models.packaged import sface_path
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.backbones.importers import import_model
from mien.contribution import Total
from mien.dp.accountant import noise_multiplier_for
from mien.errors import CorruptDataError, EmptyFolderError
from mien.evaluation import Comparisons, det_curve, equal_error_rate, normalise
from mien.layout import ParameterEntry, ParameterLayout, ParameterPart
from mien.methods.base import DeviceInput
from mien.methods.spreadout import pack_symmetric, unpack_symmetric
from mien.methods.statistics import COUNTS, SECOND, STATISTICS, WITHIN, check_sums
from mien.shell import cli
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec
from simulation.engines.sums import cohort_sum, epsilon_spent
from simulation.faces.datasets import find_people, read_people
from simulation.papers.leakage.scores import Matrix
from simulation.synthetic import committed_faces

DELTA: Final = 1e-6
EPSILONS: Final = (8.0, 4.0, 2.0, 1.0)
ROUNDING: Final = 1.002
"""Factor of the noise that makes up for what rounding adds to a phone's length."""
TESTED: Final = 0.25
"""Share of the people who hold no phone and are compared."""
PICTURES: Final = (4, 6)
OPTIONS: Final[Mapping[str, Any]] = {"min_people": 3, "max_people": 1, "longest": 18.0, "within_clip": 0.12}
FORMS: Final = (("wccn", 0.2), ("plda", 0.02), ("lda", 0.02))
LIARS_RANK: Final = 8
CLIP: Final = 2.45
GROUPS: Final = 5
"""Of a liar: in how many directions it claims scatter, the clip of a task without noise, and the number of groups."""


class _Given:
    """A runtime whose features are given."""

    given: Matrix

    def features(self, *_: object) -> Matrix:
        """Return the features."""
        return self.given.astype(np.float32)


def measure(people: Sequence[Matrix], num_phones: int, seed: int) -> dict[str, float]:
    """Return the error rates of one draw of who holds a phone; `people` are features (N, D) of each."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(people))
    tested = [people[i] for i in order[: int(TESTED * len(people))]]
    holders = [people[i] for i in order[len(tested) :]]
    phones = [holders[i] for i in rng.choice(len(holders), num_phones, replace=num_phones > len(holders))]
    drawn = [each[rng.permutation(len(each))[: rng.integers(PICTURES[0], PICTURES[1] + 1)]] for each in phones]
    dim = people[0].shape[1]
    study = _Study(_part(dim), drawn, tested)
    figures = {"released": study.error_rate(np.eye(dim), np.zeros(dim)), "people": float(len(holders))}
    for form, shrinkage in FORMS:
        figures[f"{form}_clear"] = study.of(_task(num_phones, dim, form, shrinkage))
    for epsilon in EPSILONS:
        z = ROUNDING * noise_multiplier_for(epsilon, DELTA, 1)
        dp = DpSpec("central_gaussian", z, epsilon, DELTA, max_participations=1)
        task = _task(num_phones, dim, "wccn", 0.0, PrivacySpec(max_weight=1, l2_clip=1.0, dp=dp))
        figures[f"wccn_eps{epsilon:g}"] = study.of(task)
        spent = epsilon_spent(task, STATISTICS.contribution_layout(task, study.part, dim))
        figures[f"spent_eps{epsilon:g}"] = 0.0 if spent is None else spent.epsilon
    return figures | study.lied_to(_task(num_phones, dim, "wccn", 0.2))


def _part(dim: int) -> ParameterPart:
    entries = ParameterEntry("adapter.weight", (dim, dim)), ParameterEntry("adapter.bias", (dim,))
    return ParameterLayout(entries).part(("adapter.*",))


def _task(num_phones: int, dim: int, form: str, shrinkage: float, privacy: PrivacySpec | None = None) -> TaskSpec:
    return TaskSpec(
        "noised",
        method="statistics",
        rounds=1,
        trainable=("adapter.*",),
        cohort=CohortSpec(num_phones, num_phones),
        privacy=privacy or PrivacySpec(max_weight=1, reveals=("class_moment",)),
        options={**OPTIONS, "form": form, "shrinkage": shrinkage, "rank": min(32, dim // 2)},
    )


class _Study:
    """Phones' pictures, those of the people who are compared, and what tasks over the phones come to."""

    def __init__(self, part: ParameterPart, phones: Sequence[Matrix], tested: Sequence[Matrix]) -> None:
        self.part = part
        self._dim = phones[0].shape[1]
        self._phones = phones
        self._features = np.concatenate(tested)
        self._labels = np.repeat(np.arange(len(tested)), [len(each) for each in tested])
        self._theta = np.concatenate([np.eye(self._dim).reshape(-1), np.zeros(self._dim)]).astype(np.float32)

    def error_rate(self, weight_DD: Matrix, bias_D: Matrix) -> float:
        """Return the equal error rate of all pairs of tested pictures behind a map."""
        x_ND = normalise(self._features @ weight_DD.T + bias_D)
        first, second = np.triu_indices(len(x_ND), 1)
        scores, mated = (x_ND @ x_ND.T)[first, second], self._labels[first] == self._labels[second]
        return equal_error_rate(det_curve(Comparisons(scores[mated], scores[~mated]))).value

    def of(self, task: TaskSpec) -> float:
        """Return the equal error rate behind the map of a task's one sum."""
        return self._behind(task, self._sum(task, range(len(self._phones))))

    def lied_to(self, task: TaskSpec) -> dict[str, float]:
        """Return the error rates where one phone more lies, by the most that it may add and the most that passes."""
        honest = self._sum(task, range(len(self._phones)))
        lie = self._lie(honest)
        lies = {"clip": CLIP, "check": self._most(honest, lie)}
        groups = [self._sum(task, range(first, len(self._phones), GROUPS)) for first in range(GROUPS)]
        figures = {"lie_check_length": lies["check"]}
        for name, length in lies.items():
            figures[f"lie_{name}"] = self._behind(task, _told(honest, length * lie))
            dealt = [_told(groups[0], length * lie), *groups[1:]]
            figures[f"lie_{name}_median"] = self._behind(task, self._median(dealt))
        return figures | {"honest_median": self._behind(task, self._median(groups))}

    def _median(self, groups: Sequence[Total]) -> Total:
        """Return as the whole sum what each element's median over the groups comes to."""
        middle = np.median([group.vector / group.num_reports for group in groups], axis=0)
        return Total(groups[0].layout, middle * len(self._phones), len(self._phones))

    def _sum(self, task: TaskSpec, members: Sequence[int]) -> Total:
        layout, runtime = STATISTICS.contribution_layout(task, self.part, self._dim), _Given()
        summed = cohort_sum(task, layout, "ring" if task.privacy.dp.is_on else "exact", 1)
        for member in members:
            runtime.given = self._phones[member]
            crops = np.zeros((len(runtime.given), 1, 1, 3), np.uint8)
            inp = DeviceInput(task, self.part, self._dim, self._theta, crops)
            summed.add(str(member), STATISTICS.device_round(inp, runtime).contribution)  # type: ignore[arg-type]
        return summed.total()

    def _behind(self, task: TaskSpec, total: Total) -> float:
        state = STATISTICS.server_start(task, self.part, self._theta)
        # A sum that is too poor for a map, or refused, leaves the model as it is, which is then what people get.
        with contextlib.suppress(CorruptDataError):
            state = STATISTICS.server_step(task, self.part, state, total, {})
        values, dim = self.part.gather(state.theta).astype(np.float64), self._dim
        return self.error_rate(values[: dim * dim].reshape(dim, dim), values[dim * dim :])

    def _lie(self, honest: Total) -> Matrix:
        """Return packed scatter of length 1 along the directions in which people's means differ most."""
        num = float(honest[COUNTS][0])
        apart_DD = unpack_symmetric(honest[SECOND], self._dim) - np.outer(honest["mean"], honest["mean"]) / num
        axes_DK = np.linalg.eigh(apart_DD)[1][:, -LIARS_RANK:]
        lie: Matrix = pack_symmetric(axes_DK @ axes_DK.T / np.sqrt(LIARS_RANK))
        return lie

    def _most(self, honest: Total, lie: Matrix) -> float:
        """Return the length of the longest lie that the server's check of the sum lets pass, to a thousandth."""
        low, high = 0.0, 2.0 * honest.num_reports
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            try:
                check_sums(_told(honest, middle * lie), self._dim)
                low = middle
            except CorruptDataError:
                high = middle
        return low


def _told(honest: Total, lie: Matrix) -> Total:
    """Return a sum with a lie in it, of one phone that is there beside."""
    vector = honest.vector.copy()
    vector[honest.layout.slices[WITHIN]] += lie
    return Total(honest.layout, vector, honest.num_reports)


def read_features(faces: Path | None, most: int, pictures: int) -> list[Matrix]:
    """Return SFace's features of up to `pictures` pictures (aligned crops) of up to `most` people of a folder.

    Raises EmptyFolderError for fewer than 12 people of four pictures.
    """
    model = import_model(sface_path().read_bytes(), sface_path().name)
    pipeline = FacePipeline(model.spec.input, None, ChoiceRule.CENTRE, aligned=faces is not None)
    found = {**committed_faces("phones"), **committed_faces("public"), **committed_faces("test")}
    found = found if faces is None else find_people(faces, min_images=PICTURES[0])
    names = [name for name in sorted(found) if len(found[name]) >= PICTURES[0]][:most]
    read, runtime = (
        read_people({name: list(found[name])[:pictures] for name in names}, pipeline),
        TorchRuntime(model.spec, model.layout),
    )
    features = [runtime.features(model.theta, read.of(name)).astype(np.float64) for name in names]
    people = [each for each in features if len(each) >= PICTURES[0]]
    if len(people) < 12:
        raise EmptyFolderError(f"{len(people)} people have {PICTURES[0]} pictures with a face; 12 are needed")
    return people


def table(seeds: Sequence[Mapping[str, float]], num_phones: int) -> str:
    """Return the tables in Markdown: error rates and the shares of the gain that are kept, means and range of draws."""
    mean = {name: float(np.mean([each[name] for each in seeds])) for name in seeds[0]}

    def row(label: str, name: str, *more: str) -> str:
        rates = [100 * each[name] for each in seeds]
        return f"| {label} | {np.mean(rates):.2f} ({min(rates):.2f} to {max(rates):.2f}) | " + " | ".join(more) + " |"

    def kept(name: str, of: str) -> str:
        shares = [100 * (each["released"] - each[name]) / (each["released"] - each[of]) for each in seeds]
        return f"{np.mean(shares):.0f} % ({min(shares):.0f} to {max(shares):.0f})"

    best = min((f"{form}_clear" for form, _ in FORMS), key=lambda name: mean[name])
    gains = [
        row(
            f"epsilon {mean[f'spent_eps{e:g}']:.2f}, `wccn`",
            name := f"wccn_eps{e:g}",
            kept(name, "wccn_clear"),
            kept(name, best),
        )
        for e in EPSILONS
    ]
    clear = [row(f"no noise, `{form}`, r = {r:g}", f"{form}_clear", "", "") for form, r in FORMS]
    length = mean["lie_check_length"]
    lies = [
        row("no liar", "wccn_clear"),
        row(f"scatter of length {CLIP:g}, a phone's clip", "lie_clip"),
        row(f"scatter of length {length:.0f}, the most that the sum's check lets pass", "lie_check"),
        row(f"no liar, median of {GROUPS} groups", "honest_median"),
        row(f"length {CLIP:g}, median of {GROUPS} groups", "lie_clip_median"),
        row(f"length {length:.0f}, median of {GROUPS} groups", "lie_check_median"),
    ]
    return "\n".join(
        [
            f"{num_phones} phones drawn of {mean['people']:.0f} people; draws: {len(seeds)}",
            "",
            f"| delta {DELTA:g} | EER, % | gain kept of the same form's | of the best form's |\n|---|---|---|---|",
            row("released model", "released", "", ""),
            *clear,
            *gains,
            "",
            "| one phone lies about scatter within people; no noise, `wccn`, r = 0.2 | EER, % |\n|---|---|",
            *(each.removesuffix("|  |") + "|" for each in lies),
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the study from the command line; each draw's figures are told as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--faces", type=Path, help="a folder of folders of aligned crops; default: the shipped faces")
    parser.add_argument("--phones", type=int, default=5000, help="phones of the one sum")
    parser.add_argument("--seeds", type=int, default=3, help="draws of who holds a phone")
    parser.add_argument("--quick", action="store_true", help="a toy scale that shows that everything runs")
    args = parser.parse_args(argv)
    people = read_features(args.faces, 16 if args.quick else 10**6, 6)
    num_phones, seeds = (200, 1) if args.quick else (args.phones, args.seeds)
    figures = []
    for seed in range(seeds):
        figures.append(measure(people, num_phones, seed))
        cli.tell(f"draw {seed}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures[-1].items()))
    cli.OUT.print(table(figures, num_phones), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
