"""The leakage study's attacks find what is planted, find nothing where nothing is, and their tables say so."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from mien.evaluation import normalise
from mien.methods.base import Crops
from mien.records import to_mapping
from simulation.papers.leakage import study as leakage
from simulation.papers.leakage.embeddings import measure_moments, measure_revealed
from simulation.papers.leakage.redrawing import Drawer, Judge
from simulation.papers.leakage.scores import auc, cosines, exchanged_aucs, found_among_best, linkage
from simulation.papers.leakage.setting import FULL, QUICK, Person, mean_by_person
from simulation.papers.leakage.sums import (
    Membership,
    Noise,
    OpenedSums,
    People,
    Population,
    measure_sums,
    rebuilt,
    statistics_of,
    wishart,
)
from simulation.papers.leakage.tables import markdown
from simulation.papers.leakage.updates import Attacker, Sketch
from simulation.runs.experiment import Job, Results
from tests.tiny import made_up_crops, tiny_linear

DIM = 16


def templates(num: int, seed: int) -> np.ndarray:
    """Return unit vectors about a common direction, as embeddings of faces are."""
    rng = np.random.default_rng(seed)
    return normalise(rng.normal(size=(num, DIM)) + 0.5)


# Figures


def test_auc_counts_ties_half() -> None:
    """Of 2 x 4 pairs: 2 beats all four, 1 beats two and ties with one: (4 + 2.5) / 8."""
    assert auc(np.array([2.0, 1.0]), np.array([0.0, 0.5, 1.0, 1.5])) == 6.5 / 8


def test_found_counts_members_among_the_n_best_of_each_row() -> None:
    scores = np.array([[0.9, 0.1, 0.8, 0.2], [0.3, 0.9, 0.8, 0.1]])
    members = np.array([[True, False, True, False], [True, True, False, False]])
    assert found_among_best(scores, members) == 3 / 4
    assert found_among_best(scores[:1], np.array([[False, False, True, False]])) == 0.0


def test_linkage_has_its_counts_and_a_control_at_chance() -> None:
    people = templates(200, 0)
    found = linkage(cosines(people, people), np.eye(200, dtype=np.bool_), np.random.default_rng(0))
    assert found["auc"] == found["tar"] == found["found"] == 1.0
    assert found["chance"] == 1 / 200
    assert (found["mated"], found["non_mated"]) == (200, 39800)
    assert abs(found["control_auc"] - 0.5) < 0.01
    assert 0.5 < found["control_auc_95"] < 0.6


def test_exchanged_names_give_the_auc_of_the_exchanged_matrix() -> None:
    """Ranks once for all exchanges are the same as counting each exchange by itself, ties included."""
    rng = np.random.default_rng(0)
    scores, members = rng.integers(0, 9, (5, 12)).astype(np.float64), rng.random((5, 12)) < 0.3
    orders = np.random.default_rng(1)
    first = members[:, orders.permutation(12)]
    found = exchanged_aucs(scores, members, np.random.default_rng(1))
    assert found[0] == pytest.approx(auc(scores[first], scores[~first]))
    assert found.std() > 0


def test_rates_that_cannot_be_measured_are_absent() -> None:
    found = linkage(np.eye(4), np.eye(4, dtype=np.bool_), np.random.default_rng(0))
    assert "tar" not in found


def test_templates_are_means_by_person_at_length_one() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    assert mean_by_person(rows, [2, 1]) == pytest.approx(np.array([[0.5**0.5, 0.5**0.5], [0.0, 1.0]]))


# Attacks


def test_a_sketch_is_linear_and_keeps_inner_products() -> None:
    rng = np.random.default_rng(0)
    sketch = Sketch(50_000, rng, num=1 << 14)
    a, b = rng.normal(size=(2, 50_000))
    assert sketch(a) + sketch(b) == pytest.approx(sketch(a + b))
    assert sketch(a) @ sketch(a + b) == pytest.approx(a @ (a + b), rel=0.05)


def planted(num_phones: int) -> tuple[Attacker, np.ndarray]:
    """Return an attacker where an update is a fixed linear map of the template, and the phones' own updates."""
    rng = np.random.default_rng(1)
    to_update = rng.normal(size=(DIM, 64))
    public, candidates = templates(80, 2), templates(30, 3)
    own = normalise(candidates[:num_phones] + 0.05 * rng.normal(size=(num_phones, DIM)))
    public_updates = public @ to_update + 0.01 * rng.normal(size=(80, 64))
    attacker = Attacker(public_updates.mean(axis=0), public_updates, candidates @ to_update, public, candidates)
    return attacker, own @ to_update


def test_both_attacks_find_the_person_behind_a_single_update_and_members_of_a_small_sum() -> None:
    attacker, own = planted(8)
    for attack in (attacker.matching, attacker.learned):
        assert found_among_best(attack(own, 1), np.eye(8, 30, dtype=np.bool_)) == 1.0
        pairs = attack(own[::2] + own[1::2], 2)
        members = np.repeat(np.eye(4, 15, dtype=np.bool_), 2, axis=1)
        assert auc(pairs[members], pairs[~members]) > 0.9


def test_neither_attack_finds_anybody_in_random_words() -> None:
    attacker, own = planted(8)
    noise = np.random.default_rng(5).integers(-(2**31), 2**31, (200, own.shape[1])).astype(np.float64)
    members = np.zeros((200, 30), np.bool_)
    members[:, :8] = np.eye(8, dtype=np.bool_)[np.arange(200) % 8]
    for attack in (attacker.matching, attacker.learned):
        scores = attack(noise, 1)
        assert abs(auc(scores[members], scores[~members]) - 0.5) < 0.1


def test_a_revealed_class_embedding_names_its_person() -> None:
    people = templates(40, 4)
    found = measure_revealed(people[:20], people, people.mean(axis=0), np.random.default_rng(0))
    assert found["revealed_found"] == 1.0
    assert found["revealed_chance"] == 1 / 40


def test_a_clear_moment_tells_who_is_in_it_and_a_padded_one_does_not() -> None:
    people, public = templates(300, 6), templates(300, 7)
    found = measure_moments(people[:120], people, people, public, (8,), np.random.default_rng(0))
    assert found["moment8_z0_known_auc"] > 0.99
    assert found["moment8_z3_known_auc"] < found["moment8_z1_known_auc"] < 0.99
    assert abs(found["moment8_padded_known_auc"] - 0.5) < 0.1
    assert found["moment8_padded_known_mated"] == 64


def summed(num_phones: int, num_others: int, seed: int, pictures: int = 4, dim: int = DIM) -> People:
    """Return people whose features are normal about a common mean, of so many pictures on either side."""
    rng = np.random.default_rng(seed)
    mean = np.full(dim, 0.1)

    def person() -> tuple[OpenedSums, OpenedSums]:
        own = mean + 0.03 * rng.standard_normal(dim)
        sides = own + 0.03 * rng.standard_normal((2, pictures, dim))
        return statistics_of(sides[0]), statistics_of(sides[1])

    held, known = zip(*(person() for _ in range(num_phones + num_others)), strict=True)
    return People(held, known, num_phones, float(pictures))


def test_a_known_member_is_found_as_well_as_theory_has_it() -> None:
    """Of P normal numbers that a person adds, the test reaches Phi(sqrt(P / 2 N)): here P = 16 + 136, N = 512."""
    people = summed(32, 600, 1)
    population = Population.of(people)
    test = Membership(population, people.held, is_exact=True)
    rng, scores, members = np.random.default_rng(2), [], np.zeros((40, 632), np.bool_)
    for row in members:
        row[cohort := rng.choice(632, 32, replace=False)] = True
        scores.append(test._of_means(people.sum_of(cohort).plus(population.drawn(480, rng)), Noise()))
    pairs = np.stack(scores)
    found = auc(pairs[members], pairs[~members])
    assert found == pytest.approx(ndtr(math.sqrt((DIM + DIM * (DIM + 1) / 2) / 1024)), abs=0.03)


def test_other_photos_and_noise_and_company_make_members_harder_to_find() -> None:
    people = summed(64, 200, 3)
    found = measure_sums(
        people, (4, 64, 256), {"clear": Noise(), "noisy": Noise(0.5, 0.5, 0.5)}, np.eye(DIM)[0],
        np.random.default_rng(0),
    )  # fmt: skip
    assert found["sum4_clear_known_auc"] > 0.99
    assert found["sum4_clear_known_auc"] > found["sum64_clear_known_auc"] > found["drawn256_clear_known_auc"] > 0.55
    assert found["sum64_clear_known_auc"] > found["sum64_clear_gallery_auc"] > 0.55
    assert abs(found["sum64_noisy_gallery_auc"] - 0.5) < 0.1
    assert found["difference_clear_found"] > 0.8
    assert found["trait4_clear_auc"] > 0.8
    assert all(abs(value - 0.5) < 0.05 for name, value in found.items() if name.endswith("control_auc"))


def test_drawn_company_has_the_moments_of_real_people() -> None:
    people = summed(2, 400, 4)
    population = Population.of(people)
    drawn, real = population.drawn(200_000, np.random.default_rng(0)), people.sum_of(range(402))
    for name in ("mean", "second", "within"):
        np.testing.assert_allclose(
            getattr(drawn, name) / drawn.num, getattr(real, name) / real.num, atol=0.2 * getattr(real, name).max() / 402
        )
    np.testing.assert_allclose(wishart(3, 2, np.random.default_rng(0)).shape, (3, 3))
    assert np.linalg.matrix_rank(wishart(5, 2, np.random.default_rng(0))) == 2


def test_two_people_are_rebuilt_of_their_sum_exactly_and_others_are_not() -> None:
    """Of two vectors the sum and the sum of squares leave the sign of their difference alone."""
    people = summed(8, 60, 5)
    population = Population.of(people)
    truth = np.stack([people.held[i].mean for i in (0, 1)]) - population.mean
    known = np.stack([people.known[i].mean for i in (0, 1)]) - population.mean
    np.testing.assert_allclose(rebuilt(people.sum_of([0, 1]), known, population.mean), truth, atol=1e-6)
    for num in (4, 40):  # whatever is rebuilt has the sums that were shown
        shown = people.sum_of(range(num))
        near = np.stack([people.known[i].mean for i in range(num)]) - population.mean
        found = rebuilt(shown, near, population.mean) + population.mean
        np.testing.assert_allclose(found.sum(axis=0), shown.mean, atol=1e-6)
        np.testing.assert_allclose(found.T @ found, shown.second, atol=1e-6)


def faces(num: int) -> Crops:
    return np.concatenate([made_up_crops(1, seed=seed) for seed in range(num)])


def test_a_linear_recogniser_is_redrawn_and_judged() -> None:
    """Twelve numbers make a face and twelve an embedding: regression draws the face itself."""
    tiny = tiny_linear(12)
    runtime, crops = tiny.runtime(), faces(160)

    def embed(some: Crops) -> np.ndarray:
        return runtime.embed(tiny.theta, some).astype(np.float64)

    drawer = Drawer.learn(crops[40:], embed(crops[40:]))
    judge = Judge.of(embed, embed(crops[:40]))
    drawn = drawer.draw(drawer.coordinates(embed(crops[:40])))
    assert drawn.shape == crops[:40].shape
    verdicts, real = judge.verdicts(drawn), judge.verdicts(crops[:40])
    assert real["matched"] == 1.0
    assert verdicts["found"] > 0.5
    assert verdicts["control"] < 0.2
    refined = drawer.refine(tiny.backbone, drawer.coordinates(embed(crops[:4])), embed(crops[:4]), 20)
    before = cosines(embed(drawn[:4]), judge.templates[:4]).diagonal()
    after = cosines(embed(drawer.draw(refined)), judge.templates[:4]).diagonal()
    assert after.sum() > before.sum()


def test_people_and_drawings_do_not_show_in_representations() -> None:
    person = Person(faces(1), faces(1))
    assert "array" not in repr(person)


# The study


def test_the_tables_show_what_was_measured_and_leave_the_rest_out() -> None:
    wanted = leakage.study(QUICK, raw=False, second=None)
    metrics = {"revealed_auc": 0.9, "revealed_found": 0.8, "revealed_mated": 20.0, "revealed_non_mated": 780.0}
    records = {("embeddings", seed): {"metrics": {**metrics, "people": 60.0, "failed_images": 0.0}} for seed in (0, 1)}
    text = markdown(Results(wanted, (0, 1), records), command="python -m it")
    assert "| class embedding in clear (FedFace, FedGC as published) | 80.0 ± 0.0 | not measured |" in text
    assert "20 + 780" in text
    assert "one masked upload" not in text
    assert "60 people" in text


def test_settings_that_change_a_figure_change_the_records_name(tmp_path: Path) -> None:
    second = tmp_path / "second.tflite"
    second.write_bytes(b"weights")
    names = {
        one.file_of(one.rows[0], 0)
        for sizes in (FULL, QUICK)
        for file in (None, second)
        for one in [leakage.study(sizes, raw=False, second=file)]
    }
    assert len(names) == 4


def test_a_run_on_the_shipped_faces_gives_numbers_only() -> None:
    """The whole path at a toy scale: the real recogniser, real local rounds, real encoding and masks."""
    toy = replace(
        FULL, people=24, photos=2, update_phones=4, update_others=4, update_public=3, shard_people=2,
        redrawn=2, refined=1, refine_steps=1, moment_cohorts=(4,), sums=(4,), statistics=(4,),
    )  # fmt: skip
    attacks = {
        "updates": "masked_learned_auc",
        "embeddings": "regression_same_found",
        "statistics": "sum4_clear_gallery_auc",
    }
    for attack, figure in attacks.items():
        figures = leakage.measure(
            Job(attack, 0, {"sizes": to_mapping(toy), "raw": True, "second": "", "attack": attack})
        )
        assert figure in figures
        assert all(type(value) is float and np.isfinite(value) for value in figures.values())
        assert figures["people"] == 24
