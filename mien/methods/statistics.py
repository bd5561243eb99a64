"""Summed statistics: phones add up moments of a frozen network's features, once, and the server solves for the adapter.

No phone trains. It embeds its pictures, and adds to one sum: how many people it holds, their mean features, these times
themselves, and how the features of one person scatter. From the sum over a cohort the server makes the map A (x - mu)
that holds people apart and one person's pictures together, in closed form: the parameters of the adapter.

The model is frozen, so sums of any cohorts add up: the rounds of a task are cohorts whose phones count once, and each
round's map is that of all cohorts so far. A model with a gate (`mien.methods.gate`) keeps its own population beside
phones', whose moments say whose a picture is. Where phones hold people of both, `options.mixture` tells each cohort
what the cohorts before say of that, and a person counts by the probability r_i that they are of the other population:
never less than a tenth, so that no coordinator's odds make a sum that is of one person alone.

    phone   m_i = 1/n_i sum_j x_ij,  W_i = sum_j (x_ij - m_i)(x_ij - m_i)' / (n_i - 1) where n_i > 1
            adds 1, [n_i > 1], 1/n_i, m_i, m_i m_i' and W_i of each person i
    server  mu = sum m_i / N,  W = sum W_i / N_2,  B = (sum m_i m_i' - N mu mu') / (N - 1) - W sum 1/n_i / N
            R = ((1 - r) W + r tr(W) / D I)^(-1/2),  R B R = V diag(lambda) V',  A = V diag(g) V' R
            centre A = I;  wccn g = 1;  lda g = 1 for the k largest lambda, 0 else;  plda g^2 = lambda / (lambda + 1)
            auto: the one of these that separates the newest cohort's people best, predicted from their mu, W and B
    mixture phone   r_i = 1 / (1 + exp(-(w'm_i + c))), and adds 0.1 + 0.9 r_i times as much; all in the first cohort,
                    which is told no w, c
            server  w, c from the total of the cohorts that were told some; of the first cohort's until there is one

Sources: Fisher, "The use of multiple measurements in taxonomic problems" (1936), `lda`; Hatch, Kajarekar, Stolcke,
"Within-class covariance normalization for SVM-based speaker recognition" (2006), `wccn` with its shrinkage r; Prince,
Elder, "Probabilistic linear discriminant analysis for inferences about identity" (2007), whose two covariances these
are, `plda` weighing directions by them; Cappe, Moulines, "On-line expectation-maximization algorithm for latent data
models" (2009), of which a cohort is a step with `mixture`. Decision records 0049 and 0092 have what was measured, why
features are not normalised, and what is bounded how.

Suffixes of arrays: N pictures, D features, P = D (D + 1) / 2 packed elements.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mien.contribution import Arrays, ContributionLayout, Lane, Total
from mien.errors import ConfigError, CorruptDataError, NonFiniteError
from mien.layout import ParameterPart, Vector
from mien.methods.base import (
    IN_TOTAL,
    DeviceInput,
    DeviceOutput,
    Method,
    Property,
    Requirements,
    Runtime,
    ServerState,
)
from mien.methods.check_reply import told
from mien.methods.form_choice import OWN, best_of, drawn_pairs, predicted_eer, predicted_level
from mien.methods.gate import (
    GATE,
    LEAST_WEIGHT,
    LEVEL_FMR,
    PHONES_AS_ONE,
    POPULATION,
    WORST_SHARE,
    closed,
    discriminant,
    misjudged,
    opened,
    seen,
    unmixed,
    weight_of,
)
from mien.methods.proxies import own_labels
from mien.methods.spreadout import Matrix, pack_symmetric, packed_size, unpack_symmetric
from mien.secagg.config import CohortTerms
from mien.secagg.noise import honest_survivors
from mien.secagg.planner import PROFILES, largest_group, smallest_sum
from mien.specs import ServerSpec, TaskSpec, from_mapping

COUNTS: Final = "people"
MEAN: Final = "mean"
SECOND: Final = "second"
WITHIN: Final = "within"
REVEALS: Final = "class_moment"
ADAPTER: Final = ("adapter.weight", "adapter.bias")
GATED: Final = (*ADAPTER, *GATE)
ODDS: Final = "mixture_odds"
"""What phones of a mixture are told, all alike: D weights and a bias of the log odds that a person is of theirs."""

_NOISED: Final[Mapping[str, Mapping[str, float]]] = {
    "centre": {COUNTS: 0.02, MEAN: 0.98, SECOND: 0.0, WITHIN: 0.0},
    "wccn": {COUNTS: 0.02, MEAN: 0.08, SECOND: 0.0, WITHIN: 0.9},
    "lda": {COUNTS: 0.02, MEAN: 0.08, SECOND: 0.45, WITHIN: 0.45},
    "plda": {COUNTS: 0.02, MEAN: 0.08, SECOND: 0.45, WITHIN: 0.45},
    "auto": {COUNTS: 0.02, MEAN: 0.08, SECOND: 0.45, WITHIN: 0.45},
}
"""Share of each lane in the squared length of what a phone adds under differential privacy, by the form of the map.

One noise goes over the whole, in units of how long it can be, so a lane has the less noise the longer it is: counts of
many people need little, W most; what the form does not need is not sent (0060).
"""

_SLACK: Final = 1e-3
"""What rounding may add to a phone's part of a sum, in units of its lanes."""
_LEVELLING: Final = 20
"""Turns in which the level of a noised scatter and what lies apart from it are told from each other: they settle."""
_MOST_DISTANCE: Final = 1e6
"""Squared distance of two populations, in deviations, beyond which the moments are damaged."""
_LEAST_EIGENVALUE: Final = 1e-9
_LEAST_SCATTER: Final = 1e-6
"""Mean variance within people, in units of `longest`, below which it is rounding: SFace's is 8e-4 on rendered faces."""

Form = Literal["centre", "wccn", "lda", "plda", "auto"]

_CANDIDATES: Final[tuple[tuple[Form, float], ...]] = (
    ("centre", 0.0),
    ("wccn", 0.5),
    ("wccn", 0.2),
    ("plda", 0.02),
    ("lda", 0.02),
)
"""Forms that `auto` chooses from, each with its shrinkage: those that were the best of some population in trials."""


@dataclass(frozen=True)
class StatisticsOptions:
    """`form` of the map, the `shrinkage` r of W towards a multiple of I, and the `rank` k of lda.

    `auto` takes a form and its own r by each cohort in turn, once there are two, and none where none is better than the
    task's model.

    The map is made from `min_people` people or more, all cohorts', of whom a phone counts up to `max_people`.
    Features are divided by `longest`, and cut to length 1 where they are longer. `within_clip` is the unit of the lane
    of W_i, and the length to which it is cut: two pictures at right angles, of features 0.64 long, reach 0.4; of 334
    people none was above 0.22. In units of 1, the other blocks', the scatter would be the smallest of all, and noise
    and rounding largest beside it.

    `mixture` is for a model with a gate whose phones also hold people of its own population: each person counts by the
    probability that they are not, by what earlier cohorts tell, and by a tenth at least. So a phone whose owner asks
    for sums over K phones takes part where privacy.min_cohort is 10 K.
    """

    form: Form = "wccn"
    shrinkage: float = 0.5
    rank: int = 32
    min_people: int = 100
    max_people: int = 4
    longest: float = 20.0
    within_clip: float = 0.25
    mixture: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.shrinkage <= 1:
            raise ConfigError(f"options.shrinkage is {self.shrinkage}; it must lie between 0 and 1")
        if self.rank < 1:
            raise ConfigError(f"options.rank is {self.rank}; it must be 1 or more")
        if not 3 <= self.min_people <= 10**9:
            raise ConfigError(f"options.min_people is {self.min_people}; it must be 3 or more")
        if not 1 <= self.max_people <= 64:
            raise ConfigError(f"options.max_people is {self.max_people}; it must lie between 1 and 64")
        if not 0 < self.longest <= 1e6:
            raise ConfigError(f"options.longest is {self.longest}; it must be positive, about the longest features")
        if not 0 < self.within_clip <= 1:
            raise ConfigError(f"options.within_clip is {self.within_clip}; it must be positive, and 1 at most")


def options_of(task: TaskSpec) -> StatisticsOptions:
    """Return the task's options; raises ConfigError for a task whose sum would show too much, or say nothing."""
    options, privacy = from_mapping(StatisticsOptions, task.options, where="options."), task.privacy
    if not privacy.is_masked:
        raise ConfigError(
            "method statistics sums people's mean features, and privacy.secure_aggregation is off: the coordinator "
            "would see each phone's own, which are its people's templates. Turn secure aggregation on"
        )
    if privacy.groups > 1:
        raise ConfigError(
            f"privacy.groups is {privacy.groups}; method statistics needs one sum over the whole cohort, because "
            "smaller sums tell more of each phone: set privacy.groups to 1"
        )
    if REVEALS not in privacy.reveals and not privacy.dp.is_on:
        raise ConfigError(
            "method statistics shows the coordinator the sum of people's second moments, which tells whether a known "
            f'face is among thousands; agree with privacy.reveals = ["{REVEALS}"], or promise privacy.dp'
        )
    if privacy.dp.is_on and privacy.dp.max_participations != 1:
        raise ConfigError(
            f"privacy.dp.max_participations is {privacy.dp.max_participations}; a phone's statistics are in one sum of "
            "a task: set it to 1"
        )
    if options.mixture:
        _check_mixture(task)
    cohorts = task.rounds - options.mixture  # a mixture forgets the first one, which tells whom to look for
    if (most := cohorts * task.cohort.size * options.max_people) < options.min_people:
        raise ConfigError(
            f"options.min_people is {options.min_people}, and {cohorts} cohorts that count times cohort.size "
            f"{task.cohort.size} times options.max_people {options.max_people} are {most}: every sum would be opened "
            "and of no use; ask more phones"
        )
    if options.form == "auto" and cohorts < 2:
        raise ConfigError(
            'options.form is "auto", which judges a map by a cohort that it was not made of, and rounds is '
            f"{task.rounds}: set it to {2 + options.mixture} or more, or name the form"
        )
    if task.server != ServerSpec():
        raise ConfigError(
            f"server.lr is {task.server.lr:g} and server.momentum {task.server.momentum:g}; method statistics solves "
            "for its map and steps nowhere: set them to 1 and 0"
        )
    least = norm_bound(task)
    if privacy.dp.is_on and (privacy.l2_clip != least or privacy.dp.is_adaptive):
        raise ConfigError(
            f"privacy.l2_clip is {privacy.l2_clip:g}; under differential privacy a phone's statistics are {least:g} "
            f"long at most, and noise is in units of the clip: set it to {least:g}, and privacy.dp.target_quantile to 0"
        )
    if not (privacy.coordinate_clip >= 1 and privacy.l2_clip >= least):
        raise ConfigError(
            f"privacy.l2_clip is {privacy.l2_clip:g} and privacy.coordinate_clip {privacy.coordinate_clip:g}; "
            f"statistics need {least:.2f} and 1 or more, or they would be clipped"
        )
    return options


def _check_mixture(task: TaskSpec) -> None:
    """Raise ConfigError for a mixture of which no cohort is told of another."""
    if task.rounds < 2:
        raise ConfigError(
            "options.mixture weighs people by what earlier cohorts tell of their population, and rounds is 1: set it "
            "to 2 or more, or options.mixture to false"
        )


def norm_bound(task: TaskSpec) -> float:
    """Return a bound on the L2 norm of a phone's addends: three counts and three blocks, none longer than 1.

    Under differential privacy lanes are scaled so that it is 1.
    """
    return 1.0 if task.privacy.dp.is_on else math.sqrt(6)


def lane_scales(task: TaskSpec) -> Mapping[str, float]:
    """Return the factor of each lane in what a phone of the task sends; 0 where the task's form does not need it."""
    if not task.privacy.dp.is_on:
        return dict.fromkeys((COUNTS, MEAN, SECOND, WITHIN), 1.0)
    shares = _NOISED[from_mapping(StatisticsOptions, task.options, where="options.").form]
    return {lane: math.sqrt(share / (3 if lane == COUNTS else 1)) for lane, share in shares.items()}


def contribution_layout(task: TaskSpec, part: ParameterPart, dim: int) -> ContributionLayout:
    """Return the lanes: count, weight (always 1), counts of people, sums of means, of their squares and of scatters.

    Raises ConfigError for a task that trains another part than the adapter, so that its features would not stay, and
    for one whose sums do not tell what a gate needs.
    """
    options = options_of(task)
    own = dim_of(part)
    if dim != (2 * own + 1 if is_gated(part) else own):
        raise ConfigError(f"the adapter maps {own} numbers and the model's embeddings have {dim}")
    if options.mixture and not is_gated(part):
        raise ConfigError(
            "options.mixture tells phones' people from those whom the model was made for, and this model has no gate "
            "between them: import it with --gate, or set options.mixture to false"
        )
    if is_gated(part) and not lane_scales(task)[SECOND]:
        raise ConfigError(
            "a gate needs second moments to tell populations apart, and under differential privacy form "
            f'{options.form} sends none: set options.form to "plda" or "lda"'
        )
    if options.form == "lda" and options.rank >= own:
        raise ConfigError(f"options.rank is {options.rank}; with {own} features it must be below that, or take wccn")
    return _layout(own)


def _layout(dim: int) -> ContributionLayout:
    sizes = {"count": 1, "weight": 1, COUNTS: 3, MEAN: dim, SECOND: packed_size(dim), WITHIN: packed_size(dim)}
    return ContributionLayout(tuple(Lane(name, size) for name, size in sizes.items()))


def dim_of(part: ParameterPart) -> int:
    """Return D of an adapter's part; raises ConfigError for any other, whose training would change the features."""
    if part.names not in (ADAPTER, GATED):
        raise ConfigError(
            "method statistics needs a model that is frozen but for its adapter, and the trained part is "
            f"{', '.join(part.names[:3])}: import the model with --adapter, and set trainable to ['adapter.*']"
        )
    return part.layout.sizes[ADAPTER[1]]


def is_gated(part: ParameterPart) -> bool:
    """True for the adapter of a model with a gate, whose embeddings have the recogniser's own from D to 2 D."""
    return part.names == GATED


# The device half.


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return a phone's addends; it keeps nothing. Raises ConfigError where features are longer than the task says.

    In a mixture each person's addends are times their weight of 1 at most, so that no lane gets longer.
    """
    options = options_of(inp.task)
    layout = contribution_layout(inp.task, inp.part, inp.dim)
    features_ND = runtime.features(frozen(inp.part, inp.theta), inp.crops).astype(np.float64)
    dim = dim_of(inp.part)
    if is_gated(inp.part):
        features_ND = features_ND[:, dim : 2 * dim]
    length_N1 = np.linalg.norm(features_ND, axis=1, keepdims=True)
    if float(np.median(length_N1)) > options.longest:
        raise ConfigError(
            f"this model's features are {float(np.median(length_N1)):.3g} long, and options.longest is "
            f"{options.longest:g}: the phone leaves the round, tell the operator"
        )
    x_ND = features_ND / np.maximum(length_N1, options.longest)
    labels = own_labels(inp)
    people = np.unique(labels)
    if len(people) > options.max_people:
        people = np.random.default_rng(inp.seed).choice(people, options.max_people, replace=False)
    sums = {name: np.zeros(lane) for name, lane in ((COUNTS, 3), (MEAN, dim))}
    sums |= {name: np.zeros(packed_size(dim)) for name in (SECOND, WITHIN)}
    odds = told(inp.reply, ODDS, (dim + 1,)) if options.mixture else None
    for person in people:
        own_ND = x_ND[labels == person]
        share = 1.0 if odds is None else weight_of(odds, own_ND.mean(axis=0))
        for name, values in person_addends(own_ND, options.within_clip).items():
            sums[name] += share * values
    one, scales = np.ones(1, np.float32), lane_scales(inp.task)
    shares = {name: (scales[name] * values / options.max_people).astype(np.float32) for name, values in sums.items()}
    return DeviceOutput(layout.pack({"count": one, "weight": one, **shares}), private={})


def person_addends(x_ND: Matrix, within_clip: float) -> dict[str, NDArray[np.float64]]:
    """Return what one person's features of length 1 at most add; one picture counts for the mean, not for the scatter.

    No lane is longer than 1, a scatter being in units of `within_clip`, but the three counts.
    """
    count, mean_D = len(x_ND), x_ND.mean(axis=0)
    within = np.zeros(packed_size(x_ND.shape[1]))
    if count > 1:
        offset_ND = x_ND - mean_D
        within = pack_symmetric(offset_ND.T @ offset_ND / (count - 1)) / within_clip
        within /= max(1.0, float(np.linalg.norm(within)))
    counts = np.array([1.0, float(count > 1), 1.0 / count])
    return {COUNTS: counts, MEAN: mean_D, SECOND: pack_symmetric(np.outer(mean_D, mean_D)), WITHIN: within}


def frozen(part: ParameterPart, theta: Vector) -> Vector:
    """Return the model whose adapter does nothing: sums of its features are the same whatever was adapted before.

    A gate is closed.
    """
    dim = dim_of(part)
    neutral = _adapter(np.eye(dim), np.zeros(dim))
    if is_gated(part):
        neutral = np.concatenate([neutral, closed(dim)])
    return theta if np.array_equal(part.gather(theta), neutral) else part.scatter(theta, neutral)


def _adapter(weight_DD: Matrix, bias_D: NDArray[np.float64]) -> Vector:
    return np.concatenate([weight_DD.reshape(-1), bias_D]).astype(np.float32)


# The server half.


@dataclass(frozen=True)
class Moments:
    """Moments of a total, (D,) and (D, D) in units of `longest`; `num_pairs` people had two pictures or more.

    `between` is without what the scatter of few pictures adds to a person's mean.
    """

    num_people: float
    num_pairs: float
    mean: NDArray[np.float64] = field(repr=False)
    within: Matrix = field(repr=False)
    between: Matrix = field(repr=False)


def server_start(task: TaskSpec, part: ParameterPart, theta: Vector) -> ServerState:
    """Return the state before the first cohort: the model, and nothing summed."""
    return ServerState(theta=theta)


def server_step(
    task: TaskSpec, part: ParameterPart, state: ServerState, total: Total, revealed: Mapping[str, Arrays]
) -> ServerState:
    """Return the state with one more cohort in the running total, and the adapter that this gives.

    A total that is too poor for the task's form is kept, the model stays, and the state says what it `lacks`. In a
    mixture the total is of cohorts whose phones were told odds, where there is one, and the state says what the next
    is told. Raises CorruptDataError for a sum that phones cannot have, and where the running total is of another model:
    nothing is added then.
    """
    if total.num_reports == 0:
        raise NonFiniteError("nobody's statistics are in the sum; the round is aborted")
    options, dim = options_of(task), dim_of(part)
    total, odds = _unscaled(task, total), state.arrays.get(ODDS)
    if not task.privacy.dp.is_on:
        check_sums(total, dim, least=(1.0 if odds is None else LEAST_WEIGHT) / options.max_people)
    cohort, earlier, own = total, None, part.gather(state.theta)
    noise = within_noise(task, total.num_reports)
    model = np.frombuffer(hashlib.sha256(frozen(part, state.theta).tobytes()).digest(), np.uint8)
    num_phones, before = total.num_reports, 0
    if (summed := state.revealed.get(IN_TOTAL)) is not None:
        earlier, own = _running_total(summed, total.layout, model), summed["adapter"]
        num_phones, before = num_phones + earlier.num_reports, state.rounds
        if odds is not None:  # a mixture: cohorts in which everybody counted are forgotten
            before = int(summed["weighed"][0])
            earlier = earlier if before else None
        total = total if earlier is None else earlier.merge(total)
    theta, lacks, evidence = part.scatter(state.theta, own), "", dict[str, Any]()
    tensors = part.layout.unflatten(state.theta) if is_gated(part) else {}
    deviation = noise * math.sqrt(before + 1)
    try:
        if options.mixture and odds is None:
            raise ConfigError(
                "everybody counted, whichever population they are of: the next cohort is told whom to look for, and "
                "its people make the first map"
            )
        if options.form == "auto":
            options, evidence = _chosen(options, earlier, cohort, own, dim, (noise * math.sqrt(before), noise))
        moments = moments_of(total, options, dim, deviation)
        weight_DD, mean_D = solved(moments, options), options.longest * moments.mean
        values = _adapter(weight_DD, -weight_DD @ mean_D)
        if is_gated(part):
            values = np.concatenate([values, _gate(options, earlier, cohort, total, tensors, dim)])
        theta = part.scatter(theta, values)
    except ConfigError as error:
        lacks = error.message
    kept: dict[str, NDArray[Any]] = {
        "sum": total.vector,
        "num_phones": np.array([num_phones], np.int64),
        "model": model,
        "adapter": own,
    }
    if options.mixture:
        kept["weighed"] = np.array([0 if odds is None else before + 1], np.int64)
    people = float(total[COUNTS][0]) * options.max_people
    figures = {"people_in_total": people, "phones_in_total": float(num_phones)}
    return ServerState(
        theta=theta,
        arrays=_told_next(options, total, tensors, dim, deviation, odds) if options.mixture else {},
        revealed={IN_TOTAL: kept},
        rounds=state.rounds + 1,
        figures=figures,
        lacks=lacks,
        evidence={} if lacks else evidence,
    )


def _unscaled(task: TaskSpec, total: Total) -> Total:
    """Return a sum with its lanes at their own length; of what the form does not need nothing, not even noise."""
    vector = total.vector.copy()
    for lane, scale in lane_scales(task).items():
        place = total.layout.slices[lane]
        vector[place] = vector[place] / scale if scale else 0.0
    return Total(total.layout, vector, total.num_reports)


def within_noise(task: TaskSpec, num_phones: int) -> float:
    """Return the standard deviation of the noise in an element of the lane of W over one cohort, 0 without noise."""
    dp, scale = task.privacy.dp, lane_scales(task)[WITHIN]
    if not (dp.is_on and scale):
        return 0.0
    terms = CohortTerms(PROFILES[task.privacy.secure_aggregation], smallest_sum(task), largest_group(task))
    more = num_phones / honest_survivors(terms, dp) if dp.mechanism == "skellam" else 1.0
    return dp.noise_multiplier * task.privacy.l2_clip * math.sqrt(more) / scale


def _chosen(
    options: StatisticsOptions,
    earlier: Total | None,
    cohort: Total,
    own: Vector,
    dim: int,
    noise: tuple[float, float],
) -> tuple[StatisticsOptions, dict[str, Any]]:
    """Return the options with the form that is predicted to separate a cohort's people best, and the evidence.

    Maps are made of the `earlier` cohorts, so that none is judged by the people whom it was fitted to; `noise` is what
    `within_noise` says of these, and of the newest. Raises
    ConfigError without any, and where no form is better than the task's `own` adapter.
    """
    if earlier is None:
        raise ConfigError("form auto judges maps by a cohort that they were not made of, and waits for the second one")
    judged = moments_of(cohort, replace(options, form="wccn", min_people=3), dim, noise[1])
    pairs = drawn_pairs(judged.mean, judged.within, judged.between)
    own_DD, own_D = own[: dim * dim].reshape(dim, dim), own[dim * dim :] / options.longest
    predicted = {OWN: predicted_eer(pairs, own_DD.astype(np.float64), own_D.astype(np.float64))}
    tried = {
        f"{form} {shrinkage:g}": replace(options, form=form, shrinkage=shrinkage)
        for form, shrinkage in _CANDIDATES
        if form != "lda" or options.rank < dim
    }
    for name, candidate in tried.items():
        with contextlib.suppress(ConfigError):  # a form that the total cannot carry is none to choose
            moments = moments_of(earlier, candidate, dim, noise[0])
            weight_DD = solved(moments, candidate)
            predicted[name] = predicted_eer(pairs, weight_DD, -weight_DD @ moments.mean)
    told = ", ".join(f"{name} {100 * eer:.2f}" for name, eer in predicted.items())
    if (best := best_of(predicted)) == OWN:
        raise ConfigError(
            f"no form is predicted to separate people of the newest cohort clearly better than the task's model "
            f"(equal error rates in %: {told}); the model stays"
        )
    evidence = {
        "form": tried[best].form,
        "shrinkage": tried[best].shrinkage,
        "eer": predicted[best],
        "predicted_eer": predicted,
        "people": judged.num_people,
    }
    return tried[best], evidence


def _told_next(
    options: StatisticsOptions,
    total: Total,
    tensors: Mapping[str, Vector],
    dim: int,
    deviation: float,
    odds: Vector | None,
) -> Arrays:
    """Return what a mixture's next cohort is told: log odds that are even halfway between both populations.

    They are those of the mixture's other population alone, neither moved by `mien.methods.gate.CAUTION` nor by how many
    there are of each. While nobody was told any, everybody is in the total, of whom the other population is made out
    first. What was told before stays where the total says nothing.
    """
    before = {} if odds is None else {ODDS: odds}
    try:
        moments = moments_of(total, replace(options, form="wccn", min_people=3), dim, deviation)
    except ConfigError:  # hardly anybody counts, or nobody with two pictures
        return before
    known_DD, known_D = (tensors[name].astype(np.float64) for name in POPULATION[:2])
    nu_D, s_DD = seen(known_DD, known_D, *_of_pictures(moments, options))
    if odds is None:
        nu_D, s_DD = unmixed(nu_D, s_DD)
    w_D, squared_distance = discriminant(nu_D, s_DD)
    # No covariance gives a longer weight: noise does, under differential privacy.
    if not (0 < squared_distance < _MOST_DISTANCE and float(w_D @ w_D) < 2.01 * squared_distance):
        return before
    # The model's own people count a tenth each: where they are all that there is, nothing tells of others.
    if odds is not None and misjudged(math.sqrt(squared_distance)) > WORST_SHARE:
        return before
    weight_D, bias = options.longest * (w_D @ known_DD), float(w_D @ known_D) - squared_distance / 2
    return {ODDS: np.append(weight_D, bias).astype(np.float32)}


def _of_pictures(moments: Moments, options: StatisticsOptions) -> tuple[NDArray[np.float64], Matrix]:
    """Return mean and covariance of pictures' features, in the features' own units."""
    return options.longest * moments.mean, options.longest**2 * (moments.within + moments.between)


def _gate(
    options: StatisticsOptions,
    earlier: Total | None,
    cohort: Total,
    total: Total,
    tensors: Mapping[str, Vector],
    dim: int,
) -> Vector:
    """Return the gate's values; raises ConfigError where the moments do not tell phones' people from the model's own.

    The level is that of the newest cohort's people behind a map of the cohorts `earlier`; of the first cohort, of its
    own, which comes out too low: a map holds those apart best of whom it was made.
    """
    if options.form == "centre":  # it needs no scatter, and a gate does
        options = replace(options, form="wccn", shrinkage=1.0)
    moments = mapped = judged = moments_of(total, options, dim)
    if earlier is not None:
        with contextlib.suppress(ConfigError):  # too few people in either
            mapped = moments_of(earlier, options, dim)
            judged = moments_of(cohort, replace(options, form="wccn", min_people=3), dim)
    weight_DD = solved(mapped, options)
    pairs = drawn_pairs(judged.mean, judged.within, judged.between)
    level = predicted_level(pairs, weight_DD, -weight_DD @ mapped.mean, LEVEL_FMR)
    known_DD, known_D = (tensors[name].astype(np.float64) for name in POPULATION[:2])
    return opened(known_DD, known_D, *_of_pictures(moments, options), level)


def _running_total(kept: Mapping[str, NDArray[Any]], layout: ContributionLayout, model: NDArray[np.uint8]) -> Total:
    """Return the total of the cohorts before; raises CorruptDataError for one of another model, or of no cohorts."""
    vector, num_phones = kept["sum"], int(kept["num_phones"][0])
    if not np.array_equal(kept["model"], model) or vector.shape != (layout.summed_size,):
        raise CorruptDataError(
            "the running total is of another model than this cohort's statistics, and the two do not add up; begin "
            "another task for this model"
        )
    if vector.dtype != np.float64 or not np.isfinite(vector).all() or num_phones < 1:
        raise CorruptDataError("the running total is damaged; restore it from a backup, or begin another task")
    return Total(layout, vector, num_phones)


def check_sums(total: Total, dim: int, *, least: float = 0.0) -> None:
    """Raise CorruptDataError for a sum that the statistics of so many phones cannot have.

    `least` is what a phone with one person adds to the count of people, a weight divided by the most people of one. It
    finds a phone that lied without care; one that knows these rules can stay within them.
    """
    most, slack = total.num_reports, _SLACK * total.num_reports
    people, pairs, inverse = (float(count) for count in total[COUNTS])
    fewest = max(slack, least * total.num_reports - slack)
    if not (fewest < people <= most + slack and -slack <= pairs <= people + slack):
        raise _impossible("counts of people")
    if not people - pairs - slack <= inverse <= people - pairs / 2 + slack:
        raise _impossible("counts of pictures")
    second_DD = unpack_symmetric(total[SECOND], dim)
    within = total[WITHIN]
    apart_DD = second_DD - np.outer(total[MEAN], total[MEAN]) / people
    if float(np.trace(second_DD)) > people + slack or float(np.linalg.eigvalsh(apart_DD)[0]) < -slack:
        raise _impossible("means of people")
    least = float(np.linalg.eigvalsh(unpack_symmetric(within, dim))[0])
    if float(np.linalg.norm(within)) > pairs + slack or least < -slack:
        raise _impossible("scatter within people")


def _impossible(what: str) -> CorruptDataError:
    return CorruptDataError(
        f"the sum's {what} are none that phones' statistics add up to: a phone lied or is broken; nothing of it is used"
    )


def moments_of(total: Total, options: StatisticsOptions, dim: int, noise: float = 0.0) -> Moments:
    """Return the moments in a total; raises ConfigError where it is of too few people, or has nobody's scatter.

    `noise` is the standard deviation of the noise in the total's lane of W.
    """
    people, pairs, inverse = (float(count) * options.max_people for count in total[COUNTS])
    if people < options.min_people - 0.5:
        raise ConfigError(
            f"the total is of {people:.0f} people, and options.min_people is {options.min_people}: it waits for more "
            "phones, which rounds and cohort.size allow for"
        )
    if options.form == "lda" and people <= options.rank + 0.5:
        raise ConfigError(
            f"the total is of {people:.0f} people, whose means span too little for options.rank {options.rank}: lower "
            "it, or take another options.form"
        )
    if options.form != "centre" and pairs < 1.5:
        raise ConfigError(
            f"{pairs:.0f} people in the total had two pictures, and form {options.form} needs the scatter of more: "
            'take options.form = "centre", or phones with more pictures'
        )
    mean_D = total[MEAN] * options.max_people / people
    second_DD = unpack_symmetric(total[SECOND], dim) * options.max_people
    within_DD = np.zeros((dim, dim))
    if options.form != "centre":
        each = options.max_people * options.within_clip / pairs
        within_DD = without_noise(unpack_symmetric(total[WITHIN], dim) * each, noise * each)
    between_DD = (second_DD - people * np.outer(mean_D, mean_D)) / (people - 1) - within_DD * inverse / people
    return Moments(people, pairs, mean_D, within_DD, between_DD)


def without_noise(within_DD: Matrix, deviation: float) -> Matrix:
    """Return a scatter of which what the noise can have made is level: all eigenvalues within its reach are the same.

    Packed noise of standard deviation s adds a symmetric matrix whose eigenvalues fill -e to e, e = s sqrt(2 D) (the
    semicircle law). Of directions that lie apart from equal ones by x, noise makes x + e^2 / 4x where x > e / 2, and
    hides the others (Benaych-Georges, Nadakuditi, "The eigenvalues and eigenvectors of finite, low rank perturbations
    of large random matrices", 2011); seen as t, they are kept as sqrt(t^2 - e^2), which has the least squared error.
    One that lies below is kept only where it is beyond the noise's reach of 0 as well: a map would lengthen it most.
    """
    if deviation == 0:
        return within_DD
    values_D, vectors_DD = np.linalg.eigh(within_DD)
    edge, level = deviation * math.sqrt(2.0 * len(values_D)), float(values_D.mean())
    for _ in range(_LEVELLING):
        apart_D = values_D - level
        kept_D = np.sign(apart_D) * np.sqrt(np.maximum(apart_D**2 - edge**2, 0.0)) * (values_D > edge)
        level = float(np.mean(values_D - np.where(kept_D == 0.0, 0.0, (apart_D + kept_D) / 2)))
    cut_DD: Matrix = (vectors_DD * (level + kept_D)) @ vectors_DD.T
    return cut_DD


def solved(moments: Moments, options: StatisticsOptions) -> Matrix:
    """Return A (D, D), as long as the identity; raises ConfigError where the moments do not give one.

    The discriminants are turned back into the features' own directions: cosines are the same, and the map does not
    depend on signs that a solver chose.
    """
    dim = len(moments.mean)
    if options.form == "centre":
        return np.eye(dim)
    root_DD = _inverse_root(moments.within, options)
    values_D, vectors_DD = np.linalg.eigh(root_DD @ moments.between @ root_DD)
    gain_D = np.ones(dim)
    if options.form == "lda":
        gain_D[: dim - options.rank] = 0.0
    elif options.form == "plda":
        ratio_D = np.maximum(values_D, 0.0)
        gain_D = np.sqrt(ratio_D / (ratio_D + 1.0))
    map_DD: Matrix = (vectors_DD * gain_D) @ vectors_DD.T @ root_DD
    length = float(np.linalg.norm(map_DD))
    if not (math.isfinite(length) and length > 0):
        raise ConfigError(
            "the people in the total do not differ by more than their own pictures do: no form but wccn and centre can "
            "be made of it"
        )
    scaled_DD: Matrix = map_DD * (math.sqrt(dim) / length)
    return scaled_DD


def _inverse_root(within_DD: Matrix, options: StatisticsOptions) -> Matrix:
    """Return W_r^(-1/2); raises ConfigError unless W_r is positive definite."""
    dim = len(within_DD)
    level, r = float(np.trace(within_DD)) / dim, options.shrinkage
    values_D, vectors_DD = np.linalg.eigh((1 - r) * within_DD + r * level * np.eye(dim))
    if not (level > _LEAST_SCATTER and values_D[0] > _LEAST_EIGENVALUE * level):
        raise ConfigError(
            f"the scatter within people is not positive definite with options.shrinkage {r:g}: raise it, or sum over "
            "more people with two pictures"
        )
    root_DD: Matrix = (vectors_DD * values_D**-0.5) @ vectors_DD.T
    return root_DD


def reply(state: ServerState, device: str) -> Arrays:
    """Return what phones of a mixture are told, all alike; nothing in the first cohort, and in other tasks."""
    return {name: values for name, values in state.arrays.items() if name == ODDS}


def requirements(task: TaskSpec) -> Requirements:
    """Return the rounds' requirements: one cohort after the other, in a mixture of more phones with the same odds."""
    options = from_mapping(StatisticsOptions, task.options, where="options.")
    why = "its sums add up, and none is stale"
    if options.mixture:
        return Requirements(shared_reply=(ODDS,), phones_as_one=PHONES_AS_ONE, why_synchronous=why)
    return Requirements(why_synchronous=why)


STATISTICS: Final = Method(
    name="statistics",
    source="Fisher 1936; Hatch, Kajarekar, Stolcke 2006; Prince, Elder 2007: moments that are summed, not trained",
    options=StatisticsOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    reply=reply,
    requirements=requirements,
    properties=frozenset(
        {Property.SEVERAL_PEOPLE, Property.FORWARD_ONLY, Property.DETERMINISTIC, Property.ADDS_UP},
    ),
)
