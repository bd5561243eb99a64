"""Validated, frozen records that several parts share: face input, thresholds, models, tasks.

`from_mapping` builds any of them from plain data (TOML, JSON) and refuses unknown fields by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from mien.errors import ConfigError
from mien.records import BELOW_1, check_limits, from_mapping, positive, to_mapping, within

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# What a phone's float32 and an operator's patience can bear: a phone refuses more before it begins.
MAX_RATE: Final = 1e3
MAX_EPOCHS: Final = 1000
MAX_BATCH: Final = 1_000_000
MAX_STEPS: Final = 1_000_000
MAX_COHORT: Final = 1_000_000
MAX_CLIP: Final = 1e6
MAX_GROUPS: Final = 64
MAX_GROUP_NAME: Final = 60
MAX_GROUP_RATES: Final = 512
MAX_CONCURRENCY: Final = 64
MAX_DIM: Final = 65_536
MAX_SCALING: Final = 3e38  # what a float32 holds, in which networks take faces and rounds agree on them
# Each phone's class embeddings in clear; or, opened as a sum, their second moment; or its model, by too many sums.
REVEALS: Final = ("class_embeddings", "class_moment", "local_models")
_POPULATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# Where five landmarks land in a 112x112 crop, image-left eye first, as (x, y) pixel centres (ArcFace's template).
TEMPLATE_112: Final = (
    (38.2946, 51.6963),
    (73.5318, 51.5014),
    (56.0252, 71.7366),
    (41.5493, 92.3655),
    (70.7299, 92.2041),
)


@dataclass(frozen=True)
class FaceInputSpec:
    """Face input of a recogniser: size, colour order and scaling of an aligned crop.

    A crop is uint8 (height, width, 3) in RGB. A network's input is `(crop - mean) / scale` as float32 (3, height,
    width), colour planes ordered as `colour` says. `dim` is the length of the embedding.
    """

    width: int = 112
    height: int = 112
    colour: Literal["RGB", "BGR"] = "RGB"
    mean: float = 127.5
    scale: float = 128.0
    dim: int = 128

    def __post_init__(self) -> None:
        if (self.width, self.height) not in ((112, 112), (96, 112)):
            raise ConfigError(f"face input {self.width}x{self.height} is unknown; use 112x112 or 96x112")
        if not (0 < self.scale <= MAX_SCALING and abs(self.mean) <= MAX_SCALING):
            raise ConfigError("face input needs a finite mean and a positive scale")
        if self.colour not in ("RGB", "BGR"):
            raise ConfigError(f"face input colour is {self.colour!r}; it must be RGB or BGR")
        if not 1 <= self.dim <= MAX_DIM:
            raise ConfigError(f"face input dim is {self.dim}; an embedding has 1 to {MAX_DIM} numbers")

    @property
    def template(self) -> NDArray[np.float64]:
        """Landmark positions in the crop: (5, 2) as (x, y); the 96-wide variant is shifted by 8 pixels."""
        import numpy as np  # not above: whoever reads a task or a model's description computes nothing

        points: NDArray[np.float64] = np.array(TEMPLATE_112)
        points[:, 0] -= (112 - self.width) / 2
        return points

    def network_input(self, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return crops (N, H, W, 3) uint8 RGB as the network's float32 input (N, 3, H, W)."""
        import numpy as np

        if crops.ndim != 4 or crops.shape[1:] != (self.height, self.width, 3) or crops.dtype != np.uint8:
            raise ConfigError(
                f"crops have shape {crops.shape} {crops.dtype}, the model needs (N, {self.height}, {self.width}, 3) "
                "uint8 RGB; align the faces with this model's FaceInputSpec"
            )
        ordered = crops if self.colour == "RGB" else crops[..., ::-1]
        scaled = (ordered.astype(np.float32) - np.float32(self.mean)) / np.float32(self.scale)
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class Threshold:
    """A decision threshold with its provenance: accept iff score >= value.

    `fmr` is the achieved false match rate on `num_non_mated` comparisons of `dataset`, for model `model_id`.
    """

    value: float
    fmr: float
    dataset: str
    num_mated: int
    num_non_mated: int
    model_id: str
    date: str

    def __post_init__(self) -> None:
        if not -1.0 <= self.value <= 1.0 or not 0.0 <= self.fmr <= 1.0:
            raise ConfigError("threshold must be a cosine in [-1, 1] with an FMR in [0, 1]")


@dataclass(frozen=True)
class GroupRate:
    """False matches among people of one group, at the model's threshold for `target_fmr` over all people.

    `attribute` is what groups differ by (age), `group` one of them (0-12). `verdict`: "measured"; "exceeds" where the
    group's rate is above 10 times the target; "too_small" where its people cannot tell. The counts are of comparisons
    of different people of the group on `dataset`, by model `model_id`.
    """

    attribute: str
    group: str
    verdict: Literal["measured", "exceeds", "too_small"]
    target_fmr: float
    threshold: float
    num_people: int
    num_false_matches: int
    num_non_mated: int
    dataset: str
    model_id: str
    date: str

    def __post_init__(self) -> None:
        for text in (self.attribute, self.group):
            if not 0 < len(text) <= MAX_GROUP_NAME or not text.isprintable():
                raise ConfigError(f"a group's name has 1 to {MAX_GROUP_NAME} printable characters")
        check_limits(self, "groups.")
        if not -1.0 <= self.threshold <= 1.0 or not 0.0 < self.target_fmr <= 1.0:
            raise ConfigError("a group's rate needs a threshold in [-1, 1] and a target above 0 and at most 1")
        if self.num_people < 0 or not 0 <= self.num_false_matches <= self.num_non_mated:
            raise ConfigError("a group's counts cannot be: errors are some of its comparisons")


@dataclass(frozen=True)
class ModelSpec:
    """Facts about a model besides its parameters; becomes the bundle's manifest.

    `groups` is None where nobody measured any: a description without them has the bytes that it always had.
    """

    backbone: str
    layout_sha256: str
    input: FaceInputSpec
    source: str
    terms: str
    trainable: tuple[str, ...]
    thresholds: tuple[Threshold, ...] = ()
    groups: tuple[GroupRate, ...] | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and not 0 < len(self.groups) <= MAX_GROUP_RATES:
            raise ConfigError(f"a model's groups are 1 to {MAX_GROUP_RATES}, or left out")


@dataclass(frozen=True)
class MustInclude:
    """Devices that every cohort, and the sum of it, must include: `labelled` ones know whose faces they train on."""

    labelled: Annotated[int, within(1, MAX_COHORT)] = 1

    def __post_init__(self) -> None:
        check_limits(self, "cohort.must_include.")


@dataclass(frozen=True)
class CohortSpec:
    """Cohort of a round: `size` reports are wanted, `over_selection` times as many devices are asked.

    `must_include` is None where any device will do: a task without it has the bytes that it always had.
    """

    size: int = 20
    min_reports: int = 16
    over_selection: Annotated[float, within(1, 4)] = 1.0
    must_include: MustInclude | None = None

    def __post_init__(self) -> None:
        if self.size > MAX_COHORT:
            raise ConfigError(f"cohort.size is {self.size}; it must be at most {MAX_COHORT}")
        if not 1 <= self.min_reports <= self.size:
            raise ConfigError(f"cohort.min_reports is {self.min_reports}; it must lie between 1 and size ({self.size})")
        check_limits(self, "cohort.")
        if self.min_labelled > self.min_reports:
            raise ConfigError(
                f"cohort.must_include.labelled is {self.min_labelled}; a sum may have as few as min_reports "
                f"({self.min_reports}) devices: raise that or lower the first"
            )

    @property
    def num_selected(self) -> int:
        """Devices that are asked to take part."""
        return math.ceil(self.size * self.over_selection)

    @property
    def min_labelled(self) -> int:
        """Fewest devices of a sum that know whose faces they train on."""
        return 0 if self.must_include is None else self.must_include.labelled


@dataclass(frozen=True)
class DeadlineSpec:
    """Deadlines of a round's stages, in seconds.

    From `*_soft_s` on a stage goes on as soon as `min_reports` devices are there, and waits no longer for the others;
    with 0 it waits for them until its deadline.
    """

    selecting_s: float = 300.0
    training_s: float = 3600.0
    keys_s: float = 60.0
    shares_s: float = 60.0
    upload_s: float = 600.0
    consistency_s: float = 60.0
    unmask_s: float = 60.0
    selecting_soft_s: float = 0.0
    training_soft_s: float = 0.0
    upload_soft_s: float = 0.0

    def __post_init__(self) -> None:
        for stage in fields(self):
            value, hard = getattr(self, stage.name), getattr(self, stage.name.replace("_soft", ""))
            if not 0 < hard <= 7 * 86400:
                raise ConfigError(f"deadlines.{stage.name} is {value}; it must lie between 0 and 604800 seconds")
            if not 0 <= value <= hard:
                raise ConfigError(
                    f"deadlines.{stage.name} is {value}; it must lie between 0 (none) and the hard deadline ({hard:g})"
                )


@dataclass(frozen=True)
class AsynchronousSpec:
    """Asynchronous mode, buffered (FedBuff): up to `max_concurrency` cohorts of a task are in flight at once.

    Each trains on the model that was newest when it was formed. Its sum is applied to the model that is newest then,
    weighted by (1 + tau) to the power of -`staleness_exponent` (0: all weigh the same), with tau the number of models
    made since its base; once tau is above `max_staleness` the cohort is discarded.
    """

    max_concurrency: Annotated[int, within(1, MAX_CONCURRENCY)] = 2
    max_staleness: Annotated[int, within(0, 100_000)] = 8
    staleness_exponent: Annotated[float, within(0, 10)] = 0.5

    def __post_init__(self) -> None:
        check_limits(self, "asynchronous.")


@dataclass(frozen=True)
class LocalSpec:
    """Local training on one device: SGD on the trainable part.

    `steps` above 0 is the number of steps of a round, whatever the number of images; `epochs` is then not used. From
    epoch `lr_drop_epoch` of a round on (counted from 0; 0: never) both rates are a tenth. `private_lr` and
    `private_momentum` are those of what never leaves the device, by default as the others; `private_weight_decay` is
    its own, by default none, as it was before there was a field for it. `batch_norm` "train" lets
    BatchNorm normalise by batches and learn where its statistics are in the trained part: for silos, not for phones.
    """

    lr: Annotated[float, positive(MAX_RATE)] = 0.001
    epochs: int = 1
    batch_size: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    flip: bool = True
    private_lr: float | None = None
    lr_drop_epoch: Annotated[int, within(0, MAX_EPOCHS)] = 0
    steps: int = 0
    private_momentum: Annotated[float | None, BELOW_1] = None
    batch_norm: Literal["eval", "train"] = "eval"
    private_weight_decay: Annotated[float | None, within(0, MAX_RATE)] = None

    def __post_init__(self) -> None:
        check_limits(self, "local.")
        if not (1 <= self.epochs <= MAX_EPOCHS and 0 <= self.batch_size <= MAX_BATCH):
            raise ConfigError(
                f"local.epochs must be at least 1 and at most {MAX_EPOCHS}, local.batch_size at least 0 (all images in "
                f"one batch) and at most {MAX_BATCH}"
            )
        if not (0 <= self.momentum < 1 and 0 <= self.weight_decay <= MAX_RATE):
            raise ConfigError(
                f"local.momentum must lie in [0, 1) and local.weight_decay must not be negative or above {MAX_RATE:g}"
            )
        if self.private_lr is not None and not 0 <= self.private_lr <= MAX_RATE:
            raise ConfigError(
                f"local.private_lr is {self.private_lr}; it must not be negative (0: never trained) "
                f"or above {MAX_RATE:g}"
            )
        if not 0 <= self.steps <= MAX_STEPS:
            raise ConfigError(
                f"local.steps is {self.steps}; it must lie between 0 (train for local.epochs) and {MAX_STEPS}"
            )

    def num_steps(self, num_images: int) -> int:
        """Return the number of steps of a round on that many images."""
        if self.steps:
            return self.steps
        size = self.batch_size or max(num_images, 1)
        if self.batch_norm == "train":  # one image has no statistics
            num_images = num_images - 1 if size > 1 else 0
        return self.epochs * math.ceil(num_images / size)


@dataclass(frozen=True)
class ServerSpec:
    """The server's step on the mean update: theta += lr * m, m = momentum * m + mean update."""

    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.lr <= MAX_RATE and 0 <= self.momentum < 1):
            raise ConfigError(f"server.lr must be positive, at most {MAX_RATE:g}, and server.momentum lie in [0, 1)")


MOST_EPSILON: Final = 16.0
"""Most that noise of the phones' own may promise and still count as noise: above it two sums' difference tells much."""


@dataclass(frozen=True)
class DpSpec:
    """The differential privacy that a task promises each device of its population; by default none.

    `noise_multiplier` is z: the standard deviation of the noise in a sum over `privacy.l2_clip`. `epsilon` at `delta`
    is the budget of the population over all its tasks: it is never exceeded, and never raised once a sum was opened
    under it. One device is in at most `max_participations` sums of the task, which lie at least `min_separation` rounds
    apart (0: a round that failed may ask it again, and counts twice).

    accounting "participations" assumes nothing about how devices were picked; "poisson" is right only where each device
    flips a coin of its own, which no part of the real protocol enforces: simulations may use it. With "skellam" each
    device adds its share of the noise, enough of it though `dishonest_share` of the cohort adds none. `target_quantile`
    above 0 lets the clip follow that quantile of the updates' norms, at rate `clip_lr` (Andrew et al. 2021).
    """

    mechanism: Literal["none", "central_gaussian", "skellam"] = "none"
    noise_multiplier: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0
    max_participations: int = 0
    min_separation: int = 0
    accounting: Literal["participations", "poisson"] = "participations"
    dishonest_share: float = 0.1
    target_quantile: float = 0.0
    clip_lr: float = 0.2

    def __post_init__(self) -> None:
        check_limits(self, "privacy.dp.")
        if not self.is_on:
            self._check_off()
            return
        for name in ("noise_multiplier", "epsilon"):
            if not 0 < getattr(self, name) <= MAX_RATE:
                raise ConfigError(
                    f"privacy.dp.{name} is {getattr(self, name)}; it must be positive and at most {MAX_RATE:g}"
                )
        if not 1e-30 <= self.delta < 0.1:
            raise ConfigError(f"privacy.dp.delta is {self.delta}; it must lie between 1e-30 and 0.1, well below 1/N")
        if not 1 <= self.max_participations <= 100_000:
            raise ConfigError(
                f"privacy.dp.max_participations is {self.max_participations}; say in how many sums of this task one "
                "device may be, 1 to 100000"
            )
        if not 0 <= self.min_separation <= 100_000:
            raise ConfigError(f"privacy.dp.min_separation is {self.min_separation}; it must lie between 0 and 100000")
        if not 0 <= self.dishonest_share < 1:
            raise ConfigError(f"privacy.dp.dishonest_share is {self.dishonest_share}; it must lie in [0, 1)")
        self._check_clipping()

    @property
    def is_on(self) -> bool:
        """True if any noise is promised."""
        return self.mechanism != "none"

    @property
    def is_by_phones(self) -> bool:
        """True if phones themselves add noise that hides one of them; what the server promises to add does not."""
        return self.mechanism == "skellam" and self.epsilon <= MOST_EPSILON

    @property
    def is_adaptive(self) -> bool:
        """True if the clip follows a quantile of the norms."""
        return self.target_quantile > 0

    def _check_off(self) -> None:
        """Raise ConfigError for a promise that no mechanism keeps."""
        for name in ("noise_multiplier", "epsilon", "delta", "max_participations", "target_quantile"):
            if getattr(self, name) != 0:
                raise ConfigError(
                    f"privacy.dp.{name} is {getattr(self, name)} but privacy.dp.mechanism is none; name a mechanism"
                )

    def _check_clipping(self) -> None:
        if not 0 <= self.target_quantile < 1:
            raise ConfigError(f"privacy.dp.target_quantile is {self.target_quantile}; 0 (fixed clip) or below 1")
        if not 0 < self.clip_lr <= 10:
            raise ConfigError(f"privacy.dp.clip_lr is {self.clip_lr}; it must be positive and at most 10")
        if self.is_adaptive and self.mechanism != "central_gaussian":
            raise ConfigError(
                f"privacy.dp.target_quantile needs mechanism central_gaussian: under {self.mechanism} the count of "
                "clipped updates would be opened without noise; set it to 0"
            )


@dataclass(frozen=True)
class PrivacySpec:
    """Privacy of a task: what the server sees besides sums, and the smallest cohort whose sum it may see.

    `reveals` names what devices send in clear, e.g. ("class_embeddings",). Each device enforces its own floor on
    `min_cohort` and its own list of what it agrees to reveal.

    `secure_aggregation` names the server that sums are safe from; "off" lets the coordinator see each update, and a
    phone takes part only where its owner agreed to that. An update is scaled to L2 norm at most `l2_clip` and its
    elements clipped to +-`coordinate_clip` before they are rounded to elements of a ring of `ring_bits`.
    `groups` splits a cohort into that many sums of at least `min_cohort` devices each, of which the server takes
    `group_mean`: a bound on what a few devices can do, at the price of smaller sums.
    """

    reveals: tuple[str, ...] = ()
    min_cohort: int = 16
    max_weight: Annotated[int, within(1, 65535)] = 64
    secure_aggregation: Literal["malicious_server", "honest_but_curious", "off"] = "malicious_server"
    l2_clip: Annotated[float, positive(MAX_CLIP)] = 10.0
    coordinate_clip: Annotated[float, positive(MAX_CLIP)] = 1.0
    ring_bits: int = 32
    groups: Annotated[int, within(1, MAX_GROUPS)] = 1
    group_mean: Literal["mean", "trimmed_mean", "median"] = "mean"
    dp: DpSpec = field(default_factory=DpSpec)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.reveals) - set(REVEALS))
        if unknown:
            raise ConfigError(f"privacy.reveals names {unknown}; known: {list(REVEALS)}")
        if self.min_cohort < 2:
            raise ConfigError(f"privacy.min_cohort is {self.min_cohort}; a sum over fewer than 2 devices hides nobody")
        check_limits(self, "privacy.")
        self._check_numbers()
        self._check_groups()
        self._check_dp()

    @property
    def is_masked(self) -> bool:
        """True if sums are taken under secure aggregation."""
        return self.secure_aggregation != "off"

    def _check_dp(self) -> None:
        """Raise ConfigError where something besides noised sums would leave the phones."""
        if not self.dp.is_on:
            return
        if self.max_weight != 1:
            raise ConfigError(
                f"privacy.max_weight is {self.max_weight}; with differential privacy it must be 1: weights would tell "
                "how many images a device holds"
            )
        if self.reveals:
            raise ConfigError(
                f"privacy.reveals is {list(self.reveals)}; with differential privacy nothing may be shown in clear"
            )
        if not self.is_masked:
            raise ConfigError(
                f"privacy.secure_aggregation is 'off'; privacy.dp.mechanism {self.dp.mechanism} adds its noise to the "
                "integers of a masked sum: name the server that sums are safe from"
            )

    def _check_numbers(self) -> None:
        if self.ring_bits not in (24, 32):
            raise ConfigError(f"privacy.ring_bits is {self.ring_bits}; it must be 24 or 32")
        if self.is_masked and self.min_cohort < 3:
            raise ConfigError(
                f"privacy.min_cohort is {self.min_cohort}; secure aggregation needs 3 or more devices in a sum"
            )

    def _check_groups(self) -> None:
        if self.groups > 1 and not self.is_masked:
            raise ConfigError("privacy.groups needs secure aggregation; without it the server sees every update anyway")
        if self.group_mean != "mean" and self.groups < 3:
            raise ConfigError(f"privacy.group_mean {self.group_mean!r} needs at least 3 groups; raise privacy.groups")


def check_stages(stages: tuple[float, ...], name: str) -> None:
    """Raise ConfigError unless these are shares of the phones for a staged roll-out."""
    rises = list(stages) == sorted({*stages})
    if not stages or not rises or not 0 < stages[0] < 1 or stages[-1] > 1:
        raise ConfigError(
            f"{name} is {list(stages)}; give shares of the phones in rising order, the first below 1, the last 1 at "
            "most, such as [0.01, 0.1, 1.0]"
        )


@dataclass(frozen=True)
class GateSpec:
    """Release gates of a task: which models are candidates, and what they have to pass on the evaluation sets.

    Candidates are the task's last model and, with `every` above 0, the model of every so many closed rounds. One passes
    if on each of `sets` (empty: all that the coordinator has) its TAR at `fmr` is below the released model's by no more
    than `tolerance` says: `delta`, what a bootstrap by identity puts down to chance, or the larger of the two. It must
    not lie further from the released model than `max_change` of that one's norm, its mean non-mated cosine not rise by
    more than `max_cosine_rise`, its embeddings' effective rank not fall below `min_rank_share` of the released model's.
    What passed is released to `share` of the phones, or goes through `stages`, shares in rising order at each of which
    phones judge it (`mien.evaluation.rollout_spec.RollOutSpec`); what failed pauses the task or takes it back to what
    passed last.
    """

    every: int = 0
    sets: tuple[str, ...] = ()
    fmr: float = 1e-3
    tolerance: Literal["delta", "interval", "larger"] = "delta"
    delta: Annotated[float, within(0, 1)] = 0.01
    max_change: Annotated[float, within(0, 1e6)] = 1.0
    max_cosine_rise: Annotated[float, within(0, 2)] = 0.1
    min_rank_share: Annotated[float, within(0, 1)] = 0.5
    release: Literal["automatic", "manual"] = "automatic"
    share: float = 1.0
    stages: tuple[float, ...] = ()
    on_failure: Literal["pause", "rollback"] = "pause"

    def __post_init__(self) -> None:
        if not 0 <= self.every <= 100_000:
            raise ConfigError(f"gates.every is {self.every}; it must lie between 0 (at the end only) and 100000")
        if not (0 < self.fmr <= 0.5 and 0 < self.share <= 1):
            raise ConfigError("gates.fmr must lie above 0 and not above 0.5, gates.share above 0 and not above 1")
        if self.stages and (self.share != 1 or self.release != "automatic"):
            raise ConfigError("gates.stages goes with an automatic release, and in place of gates.share; give one")
        if self.stages:
            check_stages(self.stages, "gates.stages")
        check_limits(self, "gates.")

    def is_due(self, rounds_closed: int, rounds: int) -> bool:
        """Return whether the model of that round, of so many, is a candidate."""
        return rounds_closed == rounds or (self.every > 0 and rounds_closed % self.every == 0)


@dataclass(frozen=True)
class TaskSpec:
    """One training task, as an operator submits it in TOML.

    `method` names an entry of `mien.methods.METHODS`; `options` are that method's own hyper-parameters.
    `trainable` are shell-style patterns of tensor names; empty means the model's own default part. `validators` is the
    cohort that judges a round's candidates, where the method lets validators do so. With `asynchronous`, `rounds`
    counts the models that cohorts make; which methods allow it, each method says.
    """

    name: str
    method: str = "fedface"
    rounds: Annotated[int, within(1, 100_000)] = 10
    population: str = "default"
    model_id: str = "released"
    trainable: tuple[str, ...] = ()
    cohort: CohortSpec = field(default_factory=CohortSpec)
    deadlines: DeadlineSpec = field(default_factory=DeadlineSpec)
    local: LocalSpec = field(default_factory=LocalSpec)
    server: ServerSpec = field(default_factory=ServerSpec)
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    gates: GateSpec = field(default_factory=GateSpec)
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    validators: CohortSpec | None = None
    asynchronous: AsynchronousSpec | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 80 or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"task name {self.name!r} must be 1-80 letters, digits, '-' or '_'")
        if not _POPULATION.fullmatch(self.population):
            raise ConfigError(
                f"population {self.population[:80]!r} must be 1-64 letters, digits, dots, dashes or underscores"
            )
        check_limits(self, "")
        if self.cohort.min_reports < self.privacy.min_cohort * self.privacy.groups:
            groups = f" x privacy.groups ({self.privacy.groups})" if self.privacy.groups > 1 else ""
            raise ConfigError(
                f"cohort.min_reports ({self.cohort.min_reports}) is below privacy.min_cohort "
                f"({self.privacy.min_cohort}){groups}; raise the first or lower the second"
            )
        if self.cohort.min_labelled and self.privacy.groups > 1:
            raise ConfigError(
                f"cohort.must_include goes with one sum a cohort, and privacy.groups is {self.privacy.groups}: chance "
                "deals devices into groups, of which some would be without; set it to 1"
            )
        if self.validators is not None and self.validators.must_include is not None:
            raise ConfigError("validators.must_include is set; every validator is labelled already, leave it out")
        if self.validators is not None and self.validators.min_reports < self.privacy.min_cohort:
            raise ConfigError(
                f"validators.min_reports ({self.validators.min_reports}) is below privacy.min_cohort "
                f"({self.privacy.min_cohort}); raise the first or lower the second"
            )
        if self.gates.stages and (self.privacy.dp.is_on or self.cohort.min_reports < 3):
            raise ConfigError(
                "gates.stages has phones judge a release, in masked sums without noise: it needs cohort.min_reports of "
                "3 or more, and no privacy.dp"
            )
        if self.privacy.dp.is_on and not self.trainable:
            raise ConfigError(
                "trainable is empty; with differential privacy name the part that is trained (noise grows with the "
                "square root of its size), e.g. trainable = ['block13.*']"
            )
        if self.asynchronous is not None:
            self._check_asynchronous()

    def _check_asynchronous(self) -> None:
        """Raise ConfigError for what several cohorts at once cannot keep."""
        if self.privacy.dp.is_on:
            raise ConfigError(
                "[asynchronous] goes with no differential privacy: rounds that overlap have no accounting here; leave "
                "[asynchronous] out, or privacy.dp"
            )
        if self.validators is not None:
            raise ConfigError("[asynchronous] goes with no [validators]: they judge one cohort's candidates at a time")
        if self.gates.every > 0 and self.gates.on_failure == "rollback":
            raise ConfigError(
                "[asynchronous] with gates.every needs gates.on_failure = 'pause': cohorts in flight train on models "
                "that a rollback would take back"
            )


__all__ = [
    "TEMPLATE_112",
    "AsynchronousSpec",
    "CohortSpec",
    "DeadlineSpec",
    "DpSpec",
    "FaceInputSpec",
    "GateSpec",
    "GroupRate",
    "LocalSpec",
    "ModelSpec",
    "MustInclude",
    "PrivacySpec",
    "ServerSpec",
    "TaskSpec",
    "Threshold",
    "check_stages",
    "from_mapping",
    "to_mapping",
]
