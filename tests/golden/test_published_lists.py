"""Readers of IJB, RFW, SLLFW and MegaFace lists: tiny lists written here, figures by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from mien.errors import ConfigError, CorruptDataError, UndefinedMetricError
from mien.evaluation import cmc, det_curve, pool_templates, rates_at
from mien.evaluation.protocols import ijb, lfw, megaface, rfw


def directions(*degrees: float) -> NDArray[np.float64]:
    """Return unit vectors at these angles: the cosine of two is that of the difference."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


# IJB-B and IJB-C.

MEDIA = "1.jpg 10 1\n2.jpg 10 2\n3.jpg 10 2\nframes/4.png 20 3\n5.jpg 30 4\n"


def test_templates_and_their_comparisons() -> None:
    table = ijb.parse_face_media(MEDIA)
    assert table.images == ("1.jpg", "2.jpg", "3.jpg", "frames/4.png", "5.jpg")
    # Template 10: medium 1 at 0 degrees, medium 2 the mean of 80 and 100 degrees, shorter than 1: cos 10.
    embeddings = directions(0, 80, 100, 30, 200)
    templates = pool_templates(embeddings, table.template_ids, table.media_ids)
    assert templates.ids.tolist() == [10, 20, 30]
    angle = math.degrees(math.atan2(math.cos(math.radians(10)), 1.0))
    pairs = ijb.parse_template_pairs("10 20 1\n10 30 0\n20 30 0\n")
    assert pairs.mated.tolist() == [True, False, False]
    found = pairs.score(templates)
    np.testing.assert_allclose(found.mated, [math.cos(math.radians(angle - 30))], atol=1e-12)
    np.testing.assert_allclose(
        found.non_mated, [math.cos(math.radians(200 - angle)), math.cos(math.radians(170))], atol=1e-12
    )
    assert rates_at(found, 0.9).tar == 1.0
    with pytest.raises(ConfigError, match="1 templates were not pooled, first 40"):
        ijb.parse_template_pairs("10 40 1\n").score(templates)


def test_landmarks() -> None:
    found = ijb.parse_landmarks("1.jpg 1 2 3 4 5 6 7 8 9 10 0.5\n2.jpg 0 0 0 0 0 0 0 0 0 -1.5 1\n")
    assert found.points.shape == (2, 5, 2)
    assert found.points[0, 4].tolist() == [9.0, 10.0]
    assert found.points[1, 4].tolist() == [0.0, -1.5]
    assert found.detector_scores.tolist() == [0.5, 1.0]


GALLERY_1 = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID\n1,100,img/1.jpg,7\n1,100,img/2.jpg,8\n2,200,img/3.jpg,9\n"
GALLERY_2 = "TEMPLATE_ID,SUBJECT_ID,FILENAME\n3,300,img/4.jpg\n"
PROBES = "SUBJECT_ID,TEMPLATE_ID\n100,11\n200,12\n300,13\n300,14\n"


def test_two_galleries_are_searched_apart() -> None:
    """G1 holds 100 at 0 and 200 at 90 degrees, G2 300 at 180; probes at 10, 40, 170 and 60 degrees.

    In G1: 11 ranks 1 with cos 10; 12 (40 degrees) is nearer to 100 and ranks 2; 13 and 14 are non-mated with best
    scores cos 80 (to 200) and cos 30. In G2: 13 and 14 rank 1 (alone) with cos 10 and cos 120; 11 and 12 are non-mated
    with cos 170 and cos 140.
    """
    galleries = tuple(ijb.parse_subjects(text, "gallery.csv") for text in (GALLERY_1, GALLERY_2))
    probes = ijb.parse_subjects(PROBES, "probe.csv")
    assert galleries[0].template_ids.tolist() == [1, 2]
    templates = ijb.Templates(np.array([1, 2, 3, 11, 12, 13, 14]), directions(0, 90, 180, 10, 40, 170, 60))
    found = ijb.search_galleries(templates, galleries, probes)
    assert [result.num_mated for result in found.results] == [2, 2]
    assert [result.num_non_mated for result in found.results] == [2, 2]
    assert found.rank_rate(1) == 3 / 4
    assert found.rank_rate(2) == 1.0
    mean, (first, second) = found.tpir(0.5)
    # One of two may be a false positive. G1: thresholds down to above cos 80: only 11 hits. G2: cos 140 and above.
    assert (first.num_hits, second.num_hits) == (1, 2)
    assert mean == (1 / 2 + 2 / 2) / 2
    with pytest.raises(CorruptDataError, match="share a subject"):
        ijb.search_galleries(templates, (galleries[0], galleries[0]), probes)


def test_templates_without_an_image_are_missed_and_never_alarm() -> None:
    """As above, but 11 (a probe of 100) and 2 (all that G1 has of 200) failed: so 12 has no mate left to be found.

    In G1: 11 and 12 are mated and missed; 13 and 14 are non-mated. In G2: 13 and 14 rank 1; 11 never alarms.
    """
    galleries = tuple(ijb.parse_subjects(text, "gallery.csv") for text in (GALLERY_1, GALLERY_2))
    probes = ijb.parse_subjects(PROBES, "probe.csv")
    templates = ijb.Templates(np.array([1, 3, 12, 13, 14]), directions(0, 180, 40, 170, 60))
    found = ijb.search_galleries(templates, galleries, probes, failed=[2, 11])
    first, second = found.results
    assert (first.num_failed_mated, first.num_failed_non_mated) == (2, 0)
    assert (second.num_failed_mated, second.num_failed_non_mated) == (0, 1)
    assert [result.num_mated for result in found.results] == [2, 2]
    assert [result.num_non_mated for result in found.results] == [2, 2]
    assert found.rank_rate(1) == 2 / 4
    with pytest.raises(ConfigError, match="2 templates were not pooled"):
        ijb.search_galleries(templates, galleries[:1], ijb.Subjects(np.array([11, 15]), np.array([100, 100])))
    nobody = ijb.search_galleries(templates, galleries[1:], ijb.Subjects(np.array([12]), np.array([200])))
    with pytest.raises(UndefinedMetricError, match="no probe has a mate"):
        nobody.rank_rate(1)


# IJB-A.

METADATA = (
    "TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID,SIGHTING_ID,FRAME,FACE_X\n"
    "5,1,img/1.jpg,50,1,,3\n5,1,frame/2.png,51,2,4,3\n6,1,img/3.jpg,52,3,,3\n7,2,img/4.jpg,53,4,,3\n"
)


def test_a_split_of_ijba() -> None:
    table, subjects = ijb.parse_ijba_metadata(METADATA, "verify_metadata_1.csv")
    assert table.images == ("img/1.jpg", "frame/2.png", "img/3.jpg", "img/4.jpg")
    assert table.template_ids.tolist() == [5, 5, 6, 7]
    assert table.media_ids.tolist() == [50, 51, 52, 53]
    pairs = ijb.parse_ijba_comparisons("5,6\n5,7\n", subjects, "verify_comparisons_1.csv")
    assert pairs.mated.tolist() == [True, False]
    assert subjects.subject_ids.tolist() == [1, 1, 2]


# RFW and SLLFW.


def rfw_list(*, header: bool = False) -> str:
    lines = [line for k in range(10) for line in (f"m.0a{k}\t1\t2", f"m.0a{k}\t1\tm.0b{k}\t3")]
    return "\n".join([*(["10\t1"] if header else []), *lines]) + "\n"


def test_a_group_of_rfw_by_lfws_rules() -> None:
    pairs = rfw.parse_rfw_pairs(rfw_list())
    assert rfw.parse_rfw_pairs(rfw_list(header=True)).pairs == pairs.pairs
    assert pairs.num_folds == 10
    assert pairs.folds.tolist() == [k for k in range(10) for _ in range(2)]
    assert pairs.mated.tolist() == [True, False] * 10
    assert pairs.samples[2].path == "m.0b0/m.0b0_0003.jpg"
    # Mated pairs 10 degrees apart, non-mated 90, but for group two, whose mated pairs are 170 apart in folds 0 and 1.
    results = {}
    for group, wrong in (("African", 0), ("Asian", 2)):
        at = dict.fromkeys(pairs.samples, 0.0)
        for k in range(10):
            at[lfw.LfwSample(f"m.0a{k}", 2)] = 170.0 if k < wrong else 10.0
            at[lfw.LfwSample(f"m.0b{k}", 3)] = 90.0
        results[group] = lfw.evaluate(pairs, list(at), directions(*at.values()))
    found = rfw.group_accuracy(results)
    assert found.groups["African"].mean == 1.0
    assert found.groups["Asian"].mean == pytest.approx(0.9)
    assert found.mean == pytest.approx(0.95)
    assert found.std_over_groups == pytest.approx(0.05)


def test_queries_and_gallery_of_a_group() -> None:
    people = rfw.parse_people("m.0a\t3\nm.0b\t2\nm.0c\t1\n")
    assert people == {"m.0a": 3, "m.0b": 2, "m.0c": 1}
    assert rfw.parse_people("2\nm.0a 1\n") == {"m.0a": 1}
    found = rfw.query_and_gallery(people)
    assert found.queries == (lfw.LfwSample("m.0a", 3), lfw.LfwSample("m.0b", 2))
    assert found.gallery == tuple(lfw.LfwSample(*each) for each in (("m.0a", 1), ("m.0a", 2), ("m.0b", 1), ("m.0c", 1)))
    # a's query is 5 degrees from its second image; b's is nearest to c.
    result = found.rank_1(directions(25, 100), directions(0, 20, 60, 95))
    assert cmc(result, 2).tolist() == [0.5, 1.0]


def test_sllfw_is_two_lines_a_pair() -> None:
    lines = [
        line
        for k in range(10)
        for line in (f"Ada/Ada_{k + 1:04d}.jpg", "Ada/Ada_0099.jpg" if k % 2 else "Bea/Bea_0001.jpg")
    ]
    pairs = rfw.parse_sllfw("\n".join(lines))
    assert pairs.mated.tolist() == [False, True] * 5
    assert pairs.pairs[0].first == lfw.LfwSample("Ada", 1)
    assert pairs.pairs[9].first == lfw.LfwSample("Ada", 10)


# MegaFace.

PROBE_LIST = {"path": ["Ada/Ada_1.png", "Ada/Ada_2.png", "Ada/Ada_3.png", "Bea/Bea_1.png"], "id": ["Ada"] * 3 + ["Bea"]}
OTHERS = {"path": ["1/2/3.jpg", "1/2/4.jpg"]}


def challenge() -> megaface.Challenge:
    return megaface.parse_challenge(json.dumps(PROBE_LIST), json.dumps(OTHERS))


def test_rank_1_among_distractors_by_hand() -> None:
    """Ada at 0, 20 and 50 degrees, distractors at 35 and 180.

    From 0: best distractor 35 away; mate at 20 hits, at 50 misses. From 20: 15 away; both mates are further (20 and
    30): two misses. From 50: 15 away: two misses. One hit of six; Bea has one image and no mate.
    """
    found = challenge().evaluate(directions(0, 20, 50, 300), directions(35, 180))
    assert (found.num_hits, found.num_pairs, found.variant) == (1, 6, "raw")
    assert found.rank_1 == 1 / 6
    curve = det_curve(found.histogram)
    assert (curve.num_mated, curve.num_non_mated) == (6, 8)


def test_a_tie_with_a_distractor_is_a_miss() -> None:
    lists = megaface.Challenge(("a/1.png", "a/2.png"), ("a", "a"), ("d/1.jpg",))
    found = lists.evaluate(directions(0, 60), directions(60))
    assert found.num_hits == 0
    assert lists.evaluate(directions(0, 60), directions(61)).num_hits == 1


def test_refined_lists_leave_noise_out_and_say_so() -> None:
    noisy = megaface.parse_noise("# header\nAda 2.png\n", "facescrub_noises.txt")
    distractors = megaface.parse_noise("#\n7\t1/2/4.jpg\n", "megaface_noises.txt")
    found = challenge().refined(noisy, distractors)
    assert found.probes == ("Ada/Ada_1.png", "Ada/Ada_3.png", "Bea/Bea_1.png")
    assert found.people == ("Ada", "Ada", "Bea")
    assert found.distractors == ("1/2/3.jpg",)
    assert found.evaluate(directions(0, 50, 300), directions(35)).variant == "refined"


def test_a_challenge_without_pairs_or_with_other_rows_is_refused() -> None:
    alone = megaface.Challenge(("a/1.png", "b/1.png"), ("a", "b"), ("d/1.jpg",))
    with pytest.raises(UndefinedMetricError, match="no person has two probes"):
        alone.evaluate(directions(0, 10), directions(20))
    with pytest.raises(ConfigError, match="4 probes and 2 distractors"):
        challenge().evaluate(directions(0, 10), directions(20))


# Damaged lists.


@pytest.mark.parametrize(
    ("read", "text", "line"),
    [
        (ijb.parse_face_media, "1.jpg 1 1\n2.jpg 1\n", 2),
        (ijb.parse_face_media, "1.jpg 1 1\n\n3.jpg x 1\n", 3),
        (ijb.parse_face_media, "../1.jpg 1 1\n", 1),
        (ijb.parse_face_media, "/etc/passwd 1 1\n", 1),
        (ijb.parse_face_media, "C:/1.jpg 1 1\n", 1),
        (ijb.parse_template_pairs, "1 2 1\n1 2 2\n", 2),
        (ijb.parse_template_pairs, "1 -2 1\n", 1),
        (ijb.parse_template_pairs, "1 99999999999 1\n", 1),
        (ijb.parse_landmarks, "1.jpg 1 2 3 4 5 6 7 8 9 10\n", 1),
        (ijb.parse_landmarks, "1.jpg 1 2 3 4 5 6 7 8 9 nan 1\n", 1),
        (ijb.parse_landmarks, "1.jpg 1 2 3 4 5 6 7 8 9 x 1\n", 1),
        (ijb.parse_landmarks, "1.jpg 1 2 3 4 5 6 7 8 9 10 -1\n", 1),
        (lambda text: ijb.parse_subjects(text, "g"), "TEMPLATE,SUBJECT_ID\n1,2\n", 1),
        (lambda text: ijb.parse_subjects(text, "g"), "TEMPLATE_ID,SUBJECT_ID\n1,2\n1,3\n", 3),
        (lambda text: ijb.parse_subjects(text, "g"), "TEMPLATE_ID,SUBJECT_ID\n1\n", 2),
        (rfw.parse_rfw_pairs, "m.0a\t1\t2\nm.0a\t0\t2\n", 2),
        (rfw.parse_rfw_pairs, "m.0a\t1\n", 1),
        (rfw.parse_rfw_pairs, "m.0a\t1\t1\n", 1),
        (rfw.parse_rfw_pairs, "m.0a\t1\tm.0a\t2\n", 1),
        (rfw.parse_rfw_pairs, "../x\t1\t2\n", 1),
        (rfw.parse_sllfw, "Ada/Ada_0001.jpg\nAda/Bea_0002.jpg\n", 2),
        (rfw.parse_sllfw, "Ada/Ada_0001.jpg\nAda/Ada_0001.jpg\n", 2),
        (rfw.parse_people, "a 1\na 2\n", 2),
        (rfw.parse_people, "a 0\n", 1),
        (lambda text: megaface.parse_challenge(text, "{}"), '{"path": [\n"a.png"],, "id": ["a"]}', 2),
        (lambda text: megaface.parse_challenge(text, "{}"), '{"path": ["a.png"], "id": []}', 1),
        (lambda text: megaface.parse_challenge(text, "{}"), '{"path": ["../a.png"], "id": ["a"]}', 1),
        (lambda text: megaface.parse_challenge(text, "{}"), '{"path": [3], "id": ["a"]}', 1),
        (lambda text: megaface.parse_challenge(text, "{}"), '{"path": ["a.png"], "id": ["a"]}', 1),
        (lambda text: megaface.parse_challenge(text, text), '{"path": ["a.png", "a.png"], "id": ["a", "a"]}', 1),
        (lambda text: megaface.parse_challenge(text, "{}"), "[" * 100_000, 1),
    ],
)
def test_a_damaged_line_is_named(read: object, text: str, line: int) -> None:
    with pytest.raises(CorruptDataError, match=rf"line {line}[:,]"):
        read(text)  # type: ignore[operator]


@pytest.mark.parametrize("read", [ijb.parse_face_media, ijb.parse_template_pairs, rfw.parse_rfw_pairs, rfw.parse_sllfw])
def test_an_empty_list_is_refused(read: object) -> None:
    with pytest.raises(CorruptDataError, match="no entries"):
        read("\n \n")  # type: ignore[operator]


def test_pairs_that_ten_folds_do_not_divide_are_refused() -> None:
    with pytest.raises(CorruptDataError, match="1 pairs, which ten folds"):
        rfw.parse_rfw_pairs("m.0a 1 2\n")
    with pytest.raises(CorruptDataError, match="odd"):
        rfw.parse_sllfw("Ada/Ada_0001.jpg\n")


def test_an_ijba_comparison_must_name_templates_of_its_split() -> None:
    _, subjects = ijb.parse_ijba_metadata(METADATA, "m")
    for text, line in (("5,6\n5,99\n", 2), ("5\n", 1), ("5,x\n", 1)):
        with pytest.raises(CorruptDataError, match=rf"verify.csv, line {line}"):
            ijb.parse_ijba_comparisons(text, subjects, "verify.csv")
