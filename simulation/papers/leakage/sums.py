"""Leakage of summed statistics: who is in a cohort's sum, what two sums tell of one phone, and small sums undone.

The server holds what `mien/methods/statistics.py` opens of a cohort: how many people, the sums of their mean features
m, of m m' and of their scatter W_i, with the noise that a task promises. It knows the population, for the sums of all
other cohorts are its moments, and has other photos of everybody. It attacks in four ways:

- *membership*: the ratio of likelihoods of the sum with and without a candidate, all of it taken for normal (Homer et
  al., "Resolving individuals contributing trace amounts of DNA", 2008; Sankararaman, Obozinski, Jordan, Halperin,
  "Genomic privacy and limits of individual detection in a pool", 2009). Of P independent numbers that a person adds to
  a sum over N, it reaches an AUC of Phi(sqrt(P / 2 N)) where the person's addends are known;
- *difference*: the same for what two sums that differ by one phone leave of that phone;
- *rebuilding*: of all sets of people with these sums, the one that is nearest to the photos it has of them (the
  orthogonal Procrustes problem: Schoenemann, 1966);
- *attribute*: with other photos of everybody in the cohort but one, on which side of the population that one lies,
  along the first axis of public people's features: the trait in which people differ most.

Where a cohort is larger than the people there are, the rest of it is drawn: their sums are those of normal
distributions with the people's own moments (Wishart, by Bartlett's decomposition). Those who are looked for are real.

Suffixes: N people of a sum, C candidates, D features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from mien.dp.accountant import noise_multiplier_for
from mien.evaluation import normalise
from mien.methods.spreadout import unpack_symmetric
from mien.methods.statistics import MEAN, SECOND, WITHIN, StatisticsOptions, lane_scales, person_addends
from mien.records import to_mapping
from mien.specs import DpSpec, PrivacySpec, TaskSpec
from simulation.papers.leakage.scores import Matrix, auc, cosines, linkage

OPTIONS: Final = StatisticsOptions(form="plda", longest=15.0, within_clip=0.15, max_people=1)
"""Options of a task whose sums are attacked: every lane is summed, clips suit noise, and a phone holds one person.

Of four people a phone adds a quarter each, which the same noise hides the better.
"""
EPSILONS: Final = (4.0, 1.0)
DELTA: Final = 1e-6
SOUGHT: Final = 32
"""Real people of a cohort that is larger than the people there are."""
REAL_COHORTS: Final = 8
DRAWN_COHORTS: Final = 24
RIDGE: Final = 1e-4
REBUILT: Final = (2, 4, 8, 16, 32)


@dataclass(frozen=True)
class OpenedSums:
    """What is opened of a cohort, or a person's own part of it, in units of features: (D,), (D, D) and (D, D)."""

    num: int
    mean: Matrix = field(repr=False)
    second: Matrix = field(repr=False)
    within: Matrix = field(repr=False)

    def plus(self, other: OpenedSums) -> OpenedSums:
        """Return the sums over both."""
        return OpenedSums(
            self.num + other.num, self.mean + other.mean, self.second + other.second, self.within + other.within
        )


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the noise in a packed element of each of the sums; 0 for none."""

    mean: float = 0.0
    second: float = 0.0
    within: float = 0.0

    @classmethod
    def promising(cls, epsilon: float) -> Noise:
        """Return the noise of a sum over the phones of a task that promises `epsilon` at DELTA, each in one sum."""
        z = noise_multiplier_for(epsilon, DELTA, 1)
        dp = DpSpec("central_gaussian", z, epsilon, DELTA, max_participations=1)
        privacy = PrivacySpec(max_weight=1, l2_clip=1.0, dp=dp)
        task = TaskSpec(
            "attacked", method="statistics", trainable=("adapter.*",), privacy=privacy, options=to_mapping(OPTIONS)
        )
        scales = lane_scales(task)
        return cls(z / scales[MEAN], z / scales[SECOND], z / scales[WITHIN] * OPTIONS.within_clip)

    def times(self, factor: float) -> Noise:
        """Return the noise so many times as large."""
        return Noise(factor * self.mean, factor * self.second, factor * self.within)

    def on(self, sums: OpenedSums, rng: np.random.Generator) -> OpenedSums:
        """Return the sums as they are shown."""
        return replace(
            sums,
            mean=sums.mean + self.mean * rng.standard_normal(len(sums.mean)),
            second=sums.second + _packed_noise(len(sums.mean), self.second, rng),
            within=sums.within + _packed_noise(len(sums.mean), self.within, rng),
        )


def _packed_noise(dim: int, deviation: float, rng: np.random.Generator) -> Matrix:
    """Return Gaussian noise on a packed triangle, whose off-diagonals carry sqrt(2), as a symmetric matrix (D, D)."""
    square_DD = rng.standard_normal((dim, dim)) * deviation
    noise: Matrix = (square_DD + square_DD.T) / 2
    np.fill_diagonal(noise, np.diag(square_DD))
    return noise


def noises() -> dict[str, Noise]:
    """Return what sums are shown with: nothing, and the noise of each of EPSILONS."""
    return {"clear": Noise(), **{f"eps{epsilon:g}": Noise.promising(epsilon) for epsilon in EPSILONS}}


def statistics_of(x_ND: Matrix) -> OpenedSums:
    """Return what one person's features of length 1 at most add, as `person_addends` has it, unpacked."""
    found, dim = person_addends(x_ND, OPTIONS.within_clip), x_ND.shape[1]
    within_DD = unpack_symmetric(found[WITHIN], dim) * OPTIONS.within_clip
    return OpenedSums(1, found[MEAN], unpack_symmetric(found[SECOND], dim), within_DD)


def cut_statistics(features_ND: Matrix) -> OpenedSums:
    """Return what one person's features (N, D) add in a `statistics` task."""
    return statistics_of(features_ND / np.maximum(np.linalg.norm(features_ND, axis=1, keepdims=True), OPTIONS.longest))


def class_statistics(features_ND: Matrix) -> OpenedSums:
    """Return a class embedding and its square, as FedFace's moments sum them; nobody sums its pictures' scatter.

    A class embedding begins as the mean of a person's embeddings, at length 1.
    """
    x_ND = normalise(features_ND)
    mean_D = x_ND.mean(axis=0)
    length = float(np.linalg.norm(mean_D))
    mean_D, offset_ND = mean_D / length, (x_ND - mean_D) / length
    within_DD = offset_ND.T @ offset_ND / max(1, len(x_ND) - 1)
    return OpenedSums(1, mean_D, np.outer(mean_D, mean_D), within_DD)


@dataclass(frozen=True)
class People:
    """Candidates' own parts of sums, of the photos on their phones (`held`) and of those that the server has (`known`).

    The first `num_phones` have a phone; `pictures` are photos of one side, about.
    """

    held: Sequence[OpenedSums] = field(repr=False)
    known: Sequence[OpenedSums] = field(repr=False)
    num_phones: int
    pictures: float

    def sum_of(self, members: Sequence[int]) -> OpenedSums:
        """Return the sum over some people's phones."""
        total = self.held[members[0]]
        for member in members[1:]:
            total = total.plus(self.held[member])
        return total


@dataclass(frozen=True)
class Population:
    """Moments of the people that a cohort is of: of their means (`mean`, `spread`), and of their scatter (`within`).

    `spread` is of means of so many pictures as a phone has, so it holds `within` / `pictures`.
    """

    mean: Matrix = field(repr=False)
    spread: Matrix = field(repr=False)
    within: Matrix = field(repr=False)
    pictures: float
    scatter_share: float
    """How much of what a person's other photos say of their scatter is so on the phone."""
    scatter_excess: float
    """Variance of people's scatter, in units of that of normal pictures."""

    @classmethod
    def of(cls, people: People) -> Population:
        """Return the moments of all candidates."""
        means_ND = np.stack([each.mean for side in (people.held, people.known) for each in side])
        within_NDD = np.stack([each.within for side in (people.held, people.known) for each in side])
        dim, num = means_ND.shape[1], len(people.held)
        spread_DD = np.cov(means_ND.T)
        spread_DD += RIDGE * np.trace(spread_DD) / dim * np.eye(dim)
        within_DD = within_NDD.mean(axis=0)
        within_DD += RIDGE * np.trace(within_DD) / dim * np.eye(dim)
        apart_NDD = within_NDD - within_DD
        shared = float((apart_NDD[:num] * apart_NDD[num:]).sum()) / max(1e-30, float((apart_NDD[num:] ** 2).sum()))
        of_normal = (float(np.trace(within_DD)) ** 2 + float((within_DD**2).sum())) / max(1.0, people.pictures - 1)
        excess = float((apart_NDD**2).sum(axis=(1, 2)).mean()) / max(1e-30, of_normal)
        mean_D = means_ND.mean(axis=0)
        return cls(mean_D, spread_DD, within_DD, people.pictures, max(0.0, shared), excess)

    @cached_property
    def axes(self) -> tuple[Matrix, Matrix]:
        """Variances (D,) and axes (D, D) of people's means."""
        values_D, vectors_DD = np.linalg.eigh(self.spread)
        return values_D, vectors_DD

    @cached_property
    def scatter_axes(self) -> tuple[Matrix, Matrix]:
        """Variances (D,) and axes (D, D) of one person's pictures."""
        values_D, vectors_DD = np.linalg.eigh(self.within)
        return values_D, vectors_DD

    def expected(self, known_CD: Matrix) -> tuple[Matrix, Matrix]:
        """Return where people's means on their phones lie, given those of other photos (C, D), and how surely (D, D).

        Both means are of the same person and scatter around theirs, as two halves of a normal sample.
        """
        values_D, vectors_DD = np.linalg.eigh(self.spread - self.within / self.pictures)
        person_DD = (vectors_DD * np.maximum(values_D, 0.0)) @ vectors_DD.T
        gain_DD = np.linalg.solve(self.spread, person_DD).T
        return self.mean + (known_CD - self.mean) @ gain_DD.T, self.spread - gain_DD @ person_DD

    def drawn(self, num: int, rng: np.random.Generator) -> OpenedSums:
        """Return the sums over `num` people drawn of normal distributions with these moments."""
        dim = len(self.mean)
        values_D, vectors_DD = self.axes
        root_DD = (vectors_DD * np.sqrt(values_D)) @ vectors_DD.T
        offset_D = root_DD @ rng.standard_normal(dim) * np.sqrt(num)
        apart_DD = root_DD @ wishart(dim, num - 1, rng) @ root_DD + np.outer(offset_D, offset_D) / num
        mean_D = num * self.mean + offset_D
        cross_DD = np.outer(offset_D, self.mean)
        second_DD = apart_DD + cross_DD + cross_DD.T + num * np.outer(self.mean, self.mean)
        values_D, vectors_DD = self.scatter_axes
        root_DD = (vectors_DD * np.sqrt(values_D)) @ vectors_DD.T
        freedom = max(1, round(self.pictures) - 1)
        return OpenedSums(num, mean_D, second_DD, root_DD @ wishart(dim, num * freedom, rng) @ root_DD / freedom)


def wishart(dim: int, freedom: int, rng: np.random.Generator) -> Matrix:
    """Return the sum of `freedom` squares z z' of standard normal z, (D, D)."""
    if freedom < dim:
        z_ND = rng.standard_normal((freedom, dim))
        return np.asarray(z_ND.T @ z_ND)
    lower_DD = np.tril(rng.standard_normal((dim, dim)), -1)
    np.fill_diagonal(lower_DD, np.sqrt(rng.chisquare(freedom - np.arange(dim))))
    return np.asarray(lower_DD @ lower_DD.T)


@dataclass(frozen=True)
class Membership:
    """The likelihood-ratio test for candidates of whom the server knows `parts`.

    `is_exact`: they are the very addends. `sees_scatter`: that is in the sum.
    """

    population: Population = field(repr=False)
    parts: Sequence[OpenedSums] = field(repr=False)
    is_exact: bool
    sees_scatter: bool = True

    def scores(self, shown: OpenedSums, noise: Noise) -> Matrix:
        """Return the log likelihood ratio of each candidate's being in the sum, (C,)."""
        scores_C = self._of_means(shown, noise)
        is_scattered = self.sees_scatter and self.population.within.any()  # nobody is of one picture each
        return scores_C + self._of_scatter(shown, noise) if is_scattered else scores_C

    def _of_means(self, shown: OpenedSums, noise: Noise) -> Matrix:
        """Return the part of the sums of means and of their squares.

        In the axes of the population the N (m - mu) (m - mu)' have independent elements, of variance N l_i l_j, twice
        that on the diagonal: with the mean taken out, whose noise then counts as well.
        """
        at, num = self.population, shown.num
        values_D, axes_DD = at.axes
        mean_D = axes_DD.T @ at.mean
        offset_D = axes_DD.T @ shown.mean - num * mean_D
        second_DD = axes_DD.T @ shown.second @ axes_DD
        apart_DD = second_DD - np.outer(offset_D, mean_D) - np.outer(mean_D, offset_D) - num * np.outer(mean_D, mean_D)
        excess_DD = apart_DD - num * np.diag(values_D)
        variance_D = num * values_D + noise.mean**2
        variance_DD = 2 * num * np.outer(values_D, values_D) + noise.second**2
        variance_DD += 2 * noise.mean**2 * np.add.outer(mean_D**2, mean_D**2)
        own_CD, unsure_DD = self._turned
        share_DD = unsure_DD - np.diag(values_D)
        linear_C = own_CD @ (offset_D / variance_D) - 0.5 * own_CD**2 @ (1 / variance_D)
        weighted_DD = (excess_DD - share_DD) / variance_DD
        square_C = ((own_CD @ weighted_DD) * own_CD).sum(axis=1)
        length_C = ((own_CD**2 @ (1 / variance_DD)) * own_CD**2).sum(axis=1)
        common = float(((excess_DD - 0.5 * share_DD) * share_DD / variance_DD).sum())
        scores_C: Matrix = linear_C + square_C - 0.5 * length_C + common
        return scores_C

    @cached_property
    def _turned(self) -> tuple[Matrix, Matrix]:
        """Where each candidate's mean lies in the population's axes (C, D), and how surely (D, D)."""
        _, axes_DD = self.population.axes
        known_CD = np.stack([part.mean for part in self.parts])
        unsure_DD = np.zeros_like(self.population.spread)
        if not self.is_exact:
            known_CD, unsure_DD = self.population.expected(known_CD)
        return (known_CD - self.population.mean) @ axes_DD, axes_DD.T @ unsure_DD @ axes_DD

    def _of_scatter(self, shown: OpenedSums, noise: Noise) -> Matrix:
        """Return the part of the sum of scatters."""
        at = self.population
        values_D, axes_DD = at.scatter_axes
        excess_DD = axes_DD.T @ (shown.within - shown.num * at.within) @ axes_DD
        each = 2 * at.scatter_excess / max(1.0, at.pictures - 1)
        variance_DD = shown.num * each * np.outer(values_D, values_D) + noise.within**2
        own_CE = self._scatters
        scores_C: Matrix = own_CE @ (excess_DD / variance_DD).reshape(-1) - 0.5 * own_CE**2 @ (1 / variance_DD).reshape(
            -1
        )
        return scores_C

    @cached_property
    def _scatters(self) -> Matrix:
        """How each candidate's scatter is expected to differ from everybody's, in its axes, (C, D * D)."""
        _, axes_DD = self.population.scatter_axes
        share = 1.0 if self.is_exact else self.population.scatter_share
        apart_CDD = np.stack([part.within for part in self.parts]) - self.population.within
        turned_CE: Matrix = (share * axes_DD.T @ apart_CDD @ axes_DD).reshape(len(apart_CDD), -1)
        return turned_CE


def measure_features(
    held: Sequence[Matrix],
    known: Sequence[Matrix],
    public: Sequence[Matrix],
    num_phones: int,
    sizes: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, float]:
    """Return the figures on features (N, D) of each person: candidates' on phones and of other photos, public people's.

    Beside the sums of statistics those of class embeddings and of their squares are attacked, in clear.
    """
    figures: dict[str, float] = {}
    pictures = float(np.mean([len(own) for own in held]))
    for prefix, part in (("", cut_statistics), ("class_", class_statistics)):
        people = People([part(own) for own in held], [part(own) for own in known], num_phones, pictures)
        public_ND = np.stack([part(own).mean for own in public])
        _, _, axes = np.linalg.svd(public_ND - public_ND.mean(axis=0), full_matrices=False)
        shown_with = {"clear": Noise()} if prefix else noises()
        found = measure_sums(people, sizes, shown_with, axes[0], rng, sees_scatter=not prefix)
        figures |= {prefix + name: value for name, value in found.items()}
    return figures


def measure_sums(
    people: People,
    sizes: Sequence[int],
    shown_with: Mapping[str, Noise],
    axis_D: Matrix,
    rng: np.random.Generator,
    *,
    sees_scatter: bool = True,
) -> dict[str, float]:
    """Return the figures of all attacks on cohorts of each size, with each noise; `axis_D` is that of the attribute."""
    population = Population.of(people)
    tests = {
        "known": Membership(population, people.held, is_exact=True, sees_scatter=sees_scatter),
        "gallery": Membership(population, people.known, is_exact=False, sees_scatter=sees_scatter),
    }
    figures: dict[str, float] = {}
    for name, cohorts, drawn in _cohorts(people.num_phones, sizes, rng):
        member_SC = np.zeros((len(cohorts), len(people.held)), np.bool_)
        for row, cohort in zip(member_SC, cohorts, strict=True):
            row[list(cohort)] = True
        opened = [_opened(people, population, cohort, drawn, rng) for cohort in cohorts]
        for shown, noise in shown_with.items():
            seen = [noise.on(sums, rng) for sums in opened]
            for knowledge, test in tests.items():
                scores_SC = np.stack([test.scores(each, noise) for each in seen])
                figures |= _named(f"{name}_{shown}_{knowledge}", linkage(scores_SC, member_SC, rng))
    for shown, noise in shown_with.items():
        figures |= _difference(f"difference_{shown}", people, tests["gallery"], noise, rng)
        for size in sizes:
            figures |= _attribute(f"trait{size}_{shown}", people, population, size, noise, axis_D, rng)
        for num in REBUILT:
            if num <= people.num_phones:
                figures |= _rebuilt(f"rebuilt{num}_{shown}", people, population, num, noise, rng)
    return figures


def _named(prefix: str, found: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}_{key}": value for key, value in found.items()}


def _cohorts(
    num_phones: int, sizes: Sequence[int], rng: np.random.Generator
) -> Iterator[tuple[str, list[list[int]], int]]:
    """Yield a name, real members and the number of drawn ones, by size; where both are possible, both."""
    for size in sizes:
        if size <= num_phones:
            yield f"sum{size}", _split(num_phones, size, REAL_COHORTS, rng), 0
        if size > 2 * (sought := min(SOUGHT, num_phones)):
            yield f"drawn{size}", _split(num_phones, sought, DRAWN_COHORTS, rng), size - sought


def _split(num_phones: int, size: int, num: int, rng: np.random.Generator) -> list[list[int]]:
    """Return `num` cohorts: the phones split into as many as there can be, again and again."""
    cohorts: list[list[int]] = []
    while len(cohorts) < num:
        order = rng.permutation(num_phones).tolist()
        cohorts += [sorted(order[stop - size : stop]) for stop in range(size, num_phones + 1, size)]
    return cohorts[:num]


def _opened(
    people: People, population: Population, cohort: Sequence[int], drawn: int, rng: np.random.Generator
) -> OpenedSums:
    real = people.sum_of(cohort)
    return real.plus(population.drawn(drawn, rng)) if drawn else real


def _difference(
    prefix: str, people: People, test: Membership, noise: Noise, rng: np.random.Generator
) -> dict[str, float]:
    """Return how well the difference of two sums, each with its noise, names the one phone that is in but one."""
    twice, phones = noise.times(2**0.5), range(people.num_phones)
    scores_SC = np.stack([test.scores(twice.on(people.held[phone], rng), twice) for phone in phones])
    return _named(prefix, linkage(scores_SC, np.eye(len(scores_SC), len(people.held), dtype=np.bool_), rng))


def _attribute(
    prefix: str,
    people: People,
    population: Population,
    size: int,
    noise: Noise,
    axis_D: Matrix,
    rng: np.random.Generator,
) -> dict[str, float]:
    """Return how well the rest of a sum, less what is known of all others in it, tells a trait of the one phone left.

    A trial for each phone, with company of its own; of people beyond those there are, what is not known of them is
    drawn of the normal distribution that other photos leave.
    """
    held_C = np.stack([part.mean for part in people.held]) @ axis_D
    expected_CD, unsure_DD = population.expected(np.stack([part.mean for part in people.known]))
    unknown_C = held_C - expected_CD @ axis_D
    real = min(size - 1, len(held_C) - 1)
    drawn = float(np.sqrt((size - 1 - real) * (axis_D @ unsure_DD @ axis_D)))
    rest = []
    for phone in range(people.num_phones):
        others = rng.choice(np.delete(np.arange(len(held_C)), phone), real, replace=False)
        said = held_C[phone] + float(unknown_C[others].sum())
        rest.append(said + drawn * rng.standard_normal() + noise.mean * rng.standard_normal())
    rest_N, is_one_N = np.array(rest), held_C[: people.num_phones] > np.median(held_C)
    if is_one_N.all() or not is_one_N.any():
        return {}
    return {f"{prefix}_auc": auc(rest_N[is_one_N], rest_N[~is_one_N]), f"{prefix}_people": float(len(rest_N))}


def _rebuilt(
    prefix: str, people: People, population: Population, num: int, noise: Noise, rng: np.random.Generator
) -> dict[str, float]:
    """Return how near the people rebuilt of a sum come to those in it, and how near other photos of them are.

    `stranger` is the same with the sum of another cohort: what the photos alone would give under the same treatment.
    """
    cohorts = _split(people.num_phones, num, REAL_COHORTS, rng)
    own, photos, stranger = list[float](), list[float](), list[float]()
    for i, cohort in enumerate(cohorts):
        truth_ND = np.stack([people.held[member].mean for member in cohort]) - population.mean
        known_ND = np.stack([people.known[member].mean for member in cohort]) - population.mean
        photos += np.diag(cosines(known_ND, truth_ND)).tolist()
        for found, members in ((own, cohort), (stranger, cohorts[i - 1])):
            rebuilt_ND = rebuilt(noise.on(people.sum_of(members), rng), known_ND, population.mean)
            found += np.diag(cosines(rebuilt_ND, truth_ND)).tolist()
    return {
        f"{prefix}_own": float(np.mean(own)),
        f"{prefix}_photos": float(np.mean(photos)),
        f"{prefix}_stranger": float(np.mean(stranger)),
        f"{prefix}_people": float(len(own)),
    }


def rebuilt(shown: OpenedSums, known_ND: Matrix, mean_D: Matrix) -> Matrix:
    """Return the N people, less `mean_D`, nearest to those known whose sum and second moment are the ones shown.

    With X their rows, X'X is given, so X = Q S^(1/2) with Q'Q the projector on what S spans; |X - G| is least for the
    polar factor of G S^(1/2).
    """
    offset_D = shown.mean - shown.num * mean_D
    cross_DD = np.outer(shown.mean, mean_D)
    second_DD = shown.second - cross_DD - cross_DD.T + shown.num * np.outer(mean_D, mean_D)
    centre_D = offset_D / shown.num
    apart_DD = second_DD - shown.num * np.outer(centre_D, centre_D)
    values_D, vectors_DD = np.linalg.eigh(apart_DD)
    kept = min(shown.num - 1, len(values_D))
    root_DK = vectors_DD[:, -kept:] * np.sqrt(np.maximum(values_D[-kept:], 0.0))
    left, _, right = np.linalg.svd((known_ND - known_ND.mean(axis=0)) @ root_DK, full_matrices=False)
    people_ND: Matrix = centre_D + left @ right @ root_DK.T
    return people_ND
