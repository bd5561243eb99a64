"""What figures show beside error rates: counts of angles and maps, never an embedding."""

from __future__ import annotations

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.evaluation import Comparisons, all_pairs, det_curve, equal_error_rate
from mien.methods.base import ServerState
from simulation.engines.base import Cohort
from simulation.runs.measuring import ANGLE_EDGES, class_angles, eer_of, embedding_map, measured
from simulation.runs.spec import EvaluationSpec, parse

NOBODY = ServerState(np.zeros(1, np.float32))


def cohort_of(**private: object) -> Cohort:
    return Cohort({}, private={name: {"class_embedding": np.array(w, np.float32)} for name, w in private.items()})


def test_angles_are_those_between_different_clients() -> None:
    # a and b at 60 degrees, a and c at 180, b and c at 120; lengths do not matter.
    half = 3**0.5 / 2
    found = class_angles(NOBODY, cohort_of(a=[2, 0], b=[0.5, half], c=[-5, 0]))
    bins = {ANGLE_EDGES[i]: n for i, n in enumerate(found["counts"]) if n}
    assert sum(bins.values()) == 3
    for angle in (60, 120, 180):
        assert sum(n for edge, n in bins.items() if abs(edge - angle) <= 2) == 1
    assert set(found) == {"edges_deg", "counts", "classes"}


def test_angles_of_one_client_are_not_counted() -> None:
    several = Cohort({}, private={"a": {"class_embeddings": np.eye(3, dtype=np.float32)}})
    assert class_angles(NOBODY, several) == {}
    both = Cohort({}, private={**several.private, "b": {"class_embeddings": np.eye(3, dtype=np.float32)}})
    found = class_angles(NOBODY, both)
    assert sum(found["counts"]) == 9
    assert class_angles(NOBODY, Cohort({})) == {}


def test_what_the_server_was_shown_counts() -> None:
    shown = ServerState(np.zeros(1, np.float32), revealed={"b": {"class_embedding": np.array([0, 1], np.float32)}})
    found = class_angles(shown, cohort_of(a=[1, 0], b=[1, 0]))
    assert found["counts"][44:46] in ([0, 1], [1, 0])  # 90 degrees, to the last digit of an arc cosine


def test_pca_keeps_distances_in_a_plane() -> None:
    rng = np.random.default_rng(0)
    plane = np.linalg.qr(rng.standard_normal((16, 2)))[0]
    flat = rng.standard_normal((20, 2)) * [3, 1]
    found = np.array(embedding_map((flat @ plane.T).astype(np.float32), np.arange(20) % 4, "pca")["points"])
    expected = np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found[None], axis=-1), expected, atol=2e-3)
    assert found[:, 0].std() > found[:, 1].std()


@pytest.mark.parametrize(("kind", "num"), [("none", 0), ("pca", 12), ("tsne", 12)])
def test_a_map_holds_two_numbers_an_image(kind: str, num: int) -> None:
    emb_ND = np.random.default_rng(1).standard_normal((12, 8)).astype(np.float32)
    found = embedding_map(emb_ND, np.arange(12) % 3, kind)  # type: ignore[arg-type]
    assert len(found.get("points", [])) == num
    assert all(len(point) == 2 for point in found.get("points", []))


def test_only_nobodys_faces_are_mapped() -> None:
    text = 'name = "m"\n[[faces]]\npath = "people"\n[partition]\ntest = 2\n[task]\nmethod = "fedavg"\n'
    assert parse(text).map_kind == "none"
    assert parse(text.replace('path = "people"', 'path = "people"\nsynthetic = true')).map_kind == "pca"
    assert parse(text.replace('path = "people"', 'kind = "shipped"')).map_kind == "pca"
    with pytest.raises(ConfigError, match="nobody's faces only"):
        parse(text + '[evaluation]\nmap = "pca"\n')


class TestMeasured:
    def scores(self, num_people: int = 30) -> Comparisons:
        rng = np.random.default_rng(2)
        emb = np.repeat(rng.standard_normal((num_people, 16)), 4, axis=0) + rng.standard_normal((4 * num_people, 16))
        unit = (emb / np.linalg.norm(emb, axis=1, keepdims=True)).astype(np.float32)
        return all_pairs(unit, np.repeat(np.arange(num_people), 4), keep_subjects=True)

    def test_figures_are_of_the_scores_themselves(self) -> None:
        scores = self.scores()
        found = measured(scores, EvaluationSpec(replicates=100))
        assert found.eer == equal_error_rate(det_curve(scores)).value
        assert found.eer_low < found.eer < found.eer_high

    def test_the_band_holds_the_curve(self) -> None:
        found = measured(self.scores(), EvaluationSpec(replicates=200))
        curve = det_curve(self.scores())
        low, high = np.array(found.band["low"]), np.array(found.band["high"])
        assert (low <= high).all()
        inside = [
            low[i] - 0.02 <= curve.fnmr[int(np.argmax(curve.fmr <= fmr))] <= high[i] + 0.02
            for i, fmr in enumerate(found.band["fmr"])
        ]
        assert np.mean(inside) > 0.95

    def test_the_band_says_that_no_score_keeps_a_rate(self) -> None:
        # Twenty strangers share the highest score with half of the mates: whoever allows fewer accepts nobody.
        mated = np.concatenate([np.linspace(0.1, 0.9, 30), np.full(30, 0.95)])
        strangers = np.concatenate([np.linspace(-0.5, 0.3, 80), np.full(20, 0.95)])
        whom, pairs = np.arange(60) % 30, np.stack([np.arange(100) % 30, (np.arange(100) + 7) % 30], axis=1)
        found = measured(Comparisons(mated, strangers, whom, pairs), EvaluationSpec(replicates=100))
        assert found.band["fmr"][0] == pytest.approx(0.1)
        assert found.band["high"][0] == 1.0

    def test_where_no_score_keeps_a_rate_its_tar_is_0(self) -> None:
        # As above, in shares of one in ten and one in three; one in a thousand asks for more than 100 strangers.
        mated = np.concatenate([np.linspace(0.1, 0.9, 30), np.full(30, 0.95)])
        strangers = np.concatenate([np.linspace(-0.5, 0.3, 80), np.full(20, 0.95)])
        whom, pairs = np.arange(60) % 30, np.stack([np.arange(100) % 30, (np.arange(100) + 7) % 30], axis=1)
        spec = EvaluationSpec(replicates=100, targets=(0.3, 0.1, 1e-3))
        third, tenth, thousandth = measured(Comparisons(mated, strangers, whom, pairs), spec).points
        assert third["tar"] > 0.5
        assert (tenth["tar"], "not_measurable" in tenth) == (0.0, True)
        assert "tar" not in thousandth

    def test_a_collapsed_model_errs_half_the_time(self) -> None:
        assert eer_of(Comparisons(np.full(3, 0.5), np.full(4, 0.5))) == 0.5
