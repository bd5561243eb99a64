"""Leakage of updates about the people behind them: one phone's, sums over cohorts, and a single masked upload.

A phone trains one round of FedFace's private form, as the product does it, and its contribution passes through the
product's own encoding: clipped, rounded, weighted; then added to others', or masked. The server knows everything but
the phones' photos: the model, the task, other photos of everybody, and public people whose phones it can play itself.
It attacks in two ways, each linear in the update, so that both apply to sums as they are:

- *matching*: it plays a phone for each candidate's photos and compares that update with what it holds, whitened by the
  covariance of public people's updates;
- *learned inversion*: from public people's updates and templates it learns by ridge regression to read a template off
  an update, and compares the result with each candidate's template.

Suffixes of arrays: S what the server holds, C candidates, P public people, K elements of a sketch, D of an embedding.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mien.layout import ParameterPart, Vector
from mien.methods import find_method
from mien.methods.base import Crops, DeviceInput
from mien.secagg.masks import Words, WordStream, add_masks
from mien.secagg.pipeline import encode
from mien.secagg.planner import plan_numbers
from mien.secagg.quantise import NumberFormat, to_signed
from mien.secagg.vector import ContributionMap, VectorLayout, decode
from mien.specs import TaskSpec, from_mapping
from simulation.papers.leakage.scores import Matrix, cosines, linkage
from simulation.papers.leakage.setting import People, Setting, Sizes

TASK: Final = Path(__file__).resolve().parent / "update.toml"
SKETCH: Final = 1 << 16
RIDGE: Final = 0.1
REDRAWS: Final = 4
"""Number of times that phones are split into cohorts anew, and masked anew: the same people in other company."""
BINDING: Final = bytes(32)


@dataclass(frozen=True)
class Phones:
    """Plays a phone for anybody's photos: one local round from the released model, encoded as it leaves a phone."""

    setting: Setting = field(repr=False)
    task: TaskSpec
    part: ParameterPart = field(repr=False)
    shard_crops: Crops = field(repr=False)
    shard_labels: NDArray[np.int64] = field(repr=False)
    shard_templates: Vector = field(repr=False)
    numbers: NumberFormat

    @classmethod
    def of(cls, setting: Setting, sizes: Sizes, seed: int) -> Phones:
        """Return phones under the task `update.toml`, whose public shard is the first `shard_people` public people."""
        task = from_mapping(TaskSpec, {**tomllib.loads(TASK.read_text(encoding="utf-8")), "seed": seed})
        shard = setting.public[: sizes.shard_people]
        crops = [person.gallery for person in shard]
        return cls(
            setting=setting,
            task=task,
            part=setting.model.layout.part(task.trainable),
            shard_crops=np.concatenate(crops),
            shard_labels=np.repeat(np.arange(len(shard)), [len(some) for some in crops]),
            shard_templates=setting.templates(shard, "gallery").astype(np.float32),
            numbers=plan_numbers(
                max(sizes.sums),
                l2_clip=task.privacy.l2_clip,
                coordinate_clip=task.privacy.coordinate_clip,
                max_weight=task.privacy.max_weight,
                ring_bits=task.privacy.ring_bits,
            ),
        )

    @property
    def layout(self) -> VectorLayout:
        """Layout of a vector's lanes."""
        return self._map.vector_layout

    @property
    def _map(self) -> ContributionMap:
        method = find_method(self.task.method)
        return ContributionMap(method.contribution_layout(self.task, self.part, self.setting.model.spec.input.dim))

    def words(self, crops: Crops, seed: int) -> Words:
        """Return the vector of a phone that holds `crops`, ready to be masked."""
        setting = self.setting
        w = setting.embed([crops]).mean(axis=0)
        device = DeviceInput(
            task=self.task,
            part=self.part,
            dim=setting.model.spec.input.dim,
            theta=setting.model.theta,
            crops=crops,
            private={
                "class_embedding": (w / np.linalg.norm(w)).astype(np.float32),
                "public_embeddings": self.shard_templates,
            },
            public_crops=self.shard_crops,
            public_labels=self.shard_labels,
            seed=seed,
        )
        contribution = find_method(self.task.method).device_round(device, setting.runtime).contribution
        addends = self._map.addends(contribution)
        rounding = WordStream(seed.to_bytes(32, "big"))
        return encode(addends, self.layout, self.numbers, BINDING, rounding)

    def opened(self, words: Words, num_phones: int) -> Matrix:
        """Return the update in the sum of `num_phones` vectors, as the server decodes it."""
        return decode(words, self.layout, self.numbers, BINDING, num_phones).update

    def undecodable(self, words: Words) -> Matrix:
        """Return the update's place in a vector that is still masked, read as numbers."""
        signed: Matrix = to_signed(words[self.layout.update], self.numbers.ring_bits).astype(np.float64)
        return signed


class Sketch:
    """A count sketch: a random linear map to K numbers that keeps cosines to within 1/sqrt(K), for little memory."""

    def __init__(self, size: int, rng: np.random.Generator, num: int = SKETCH) -> None:
        self._num = num
        self._place = rng.integers(num, size=size, dtype=np.int64)
        self._sign = rng.integers(2, size=size).astype(np.float64) * 2 - 1

    def __call__(self, vector: Matrix) -> Matrix:
        """Return the sketch (K,) of a vector."""
        sketched: Matrix = np.bincount(self._place, self._sign * vector, self._num).astype(np.float64)
        return sketched


@dataclass(frozen=True)
class Attacker:
    """The server's preparation: its own updates for the candidates, and what public ones teach.

    Sketches of updates: their public `mean` (K,), `public` (P, K), `candidates` (C, K). Templates: `public_templates`
    (P, D), `candidate_templates` (C, D).
    """

    mean: Matrix = field(repr=False)
    public: Matrix = field(repr=False)
    candidates: Matrix = field(repr=False)
    public_templates: Matrix = field(repr=False)
    candidate_templates: Matrix = field(repr=False)

    def matching(self, held_SK: Matrix, num_phones: int) -> Matrix:
        """Return each candidate's cosine with what is held, (S, C), both whitened by public people's updates."""
        whitened_SK = self._whiten(held_SK - num_phones * self.mean)
        return cosines(whitened_SK, self.candidates - self.mean)

    def learned(self, held_SK: Matrix, num_phones: int) -> Matrix:
        """Return each candidate's cosine with the template that is read off what is held, (S, C)."""
        public_PK = self.public - self.mean
        mean_D = self.public_templates.mean(axis=0)
        weights_PD = np.linalg.solve(self._kernel, self.public_templates - mean_D)
        read_SD = (held_SK - num_phones * self.mean) @ public_PK.T @ weights_PD
        return cosines(read_SD, self.candidate_templates - mean_D)

    @property
    def _kernel(self) -> Matrix:
        public_PK = self.public - self.mean
        kernel_PP = public_PK @ public_PK.T
        regular: Matrix = kernel_PP + RIDGE * np.trace(kernel_PP) / len(kernel_PP) * np.eye(len(kernel_PP))
        return regular

    def _whiten(self, rows_SK: Matrix) -> Matrix:
        """Return rows times (C + l I)^-1, up to a factor, C being the public updates' covariance (Woodbury)."""
        public_PK = self.public - self.mean
        whitened: Matrix = rows_SK - np.linalg.solve(self._kernel, public_PK @ rows_SK.T).T @ public_PK
        return whitened


def measure_updates(setting: Setting, sizes: Sizes, seed: int) -> dict[str, float]:
    """Return the figures of both attacks on single updates, on sums and on masked uploads."""
    rng = np.random.default_rng([seed, 1])
    played = Phones.of(setting, sizes, seed)
    phones, others = setting.phones[: sizes.update_phones], setting.others[: sizes.update_others]
    public = setting.public[sizes.shard_people :][: sizes.update_public]
    sketch = Sketch(played.layout.size, rng)

    def simulate(people: People, first_seed: int) -> Matrix:
        vectors = (played.words(p.gallery, first_seed + i) for i, p in enumerate(people))
        return np.stack([sketch(played.opened(words, 1)) for words in vectors])

    public_PK = simulate(public, 1_000_000)
    attacker = Attacker(
        mean=public_PK.mean(axis=0),
        public=public_PK,
        candidates=simulate([*phones, *others], 2_000_000),
        public_templates=setting.templates(public, "gallery"),
        candidate_templates=setting.templates([*phones, *others], "gallery"),
    )
    words = [played.words(person.phone, 3_000_000 + i) for i, person in enumerate(phones)]
    figures: dict[str, float] = {}
    for name, cohorts in _cohorts(len(phones), sizes.sums, rng):
        size = len(cohorts[0])
        held_SK = np.stack([sketch(played.opened(_sum([words[i] for i in cohort]), size)) for cohort in cohorts])
        figures |= _attack(attacker, name, held_SK, cohorts, rng)
    masked = [i for _ in range(REDRAWS) for i in range(len(phones))]
    masked_SK = np.stack([sketch(played.undecodable(_masked(words[i], rng))) for i in masked])
    return figures | _attack(attacker, "masked", masked_SK, [[i] for i in masked], rng)


def _attack(
    attacker: Attacker, name: str, held_SK: Matrix, cohorts: Sequence[Sequence[int]], rng: np.random.Generator
) -> dict[str, float]:
    """Return both attacks' figures on what is held of each cohort."""
    member_SC = np.zeros((len(cohorts), len(attacker.candidates)), np.bool_)
    for row, cohort in zip(member_SC, cohorts, strict=True):
        row[list(cohort)] = True
    figures: dict[str, float] = {}
    for attack, scores in (("matching", attacker.matching), ("learned", attacker.learned)):
        found = linkage(scores(held_SK, len(cohorts[0])), member_SC, rng)
        figures |= {f"{name}_{attack}_{key}": value for key, value in found.items()}
    return figures


def _cohorts(num_phones: int, sizes: Sequence[int], rng: np.random.Generator) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield each phone by itself, then splits of the phones into cohorts of each size, drawn several times."""
    yield "single", [[i] for i in range(num_phones)]
    for size in sizes:
        draws = 1 if size == num_phones else REDRAWS
        orders = (rng.permutation(num_phones).tolist() for _ in range(draws))
        stops = range(size, num_phones + 1, size)
        yield f"sum{size}", [sorted(order[stop - size : stop]) for order in orders for stop in stops]


def _sum(vectors: Sequence[Words]) -> Words:
    total = np.zeros_like(vectors[0])
    for vector in vectors:
        total += vector  # modulo 2^32, as masked vectors are added
    return total


def _masked(words: Words, rng: np.random.Generator) -> Words:
    """Return a vector under one self mask and three pair masks, as the server receives it in a cohort of four."""
    masked = words.copy()
    seeds = [rng.bytes(32) for _ in range(4)]
    add_masks(masked, seeds[:2], seeds[2:])
    return masked
