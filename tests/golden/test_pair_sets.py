"""`.bin` pair sets written by Python 2 and 3, by lists and by arrays, and their ten folds by hand."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.evaluation.protocols.bins import parse_bin

IMAGES = [bytes([255, 216, i, 0, 200]) for i in range(24)]
FLAGS = [i % 3 != 0 for i in range(12)]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("flags", [FLAGS, [int(f) for f in FLAGS], np.array(FLAGS), list(np.array(FLAGS))])
def test_every_way_to_write_one(protocol: int, flags: object) -> None:
    pairs = parse_bin(pickle.dumps((IMAGES, flags), protocol))
    assert pairs.images == tuple(IMAGES)
    assert pairs.mated.tolist() == FLAGS


@pytest.mark.parametrize("protocol", range(6))
def test_images_as_arrays_of_bytes(protocol: int) -> None:
    arrays = [np.frombuffer(image, np.uint8) for image in IMAGES]
    assert parse_bin(pickle.dumps((arrays, np.array(FLAGS, np.int64)), protocol)).images == tuple(IMAGES)


def test_a_pickle_of_python_2() -> None:
    # What Python 2's cPickle writes of ([str, ...], [bool, ...]) with protocol 2: SHORT_BINSTRING and NEWTRUE/NEWFALSE.
    out = io.BytesIO()
    out.write(b"\x80\x02(]q\x01(")
    for image in IMAGES:
        out.write(b"U" + bytes([len(image)]) + image)
    out.write(b"e]q\x02(" + b"".join(b"\x88" if flag else b"\x89" for flag in FLAGS) + b"et.")
    pairs = parse_bin(out.getvalue())
    assert pairs.images == tuple(IMAGES)
    assert pairs.mated.tolist() == FLAGS


def test_folds_are_runs_in_file_order() -> None:
    pairs = parse_bin(pickle.dumps((IMAGES, FLAGS)))
    assert pairs.folds.tolist() == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_scores_and_accuracy_by_hand() -> None:
    """Mated pairs lie 10 degrees apart and non-mated ones 90, so every fold's threshold decides all of it rightly."""
    pairs = parse_bin(pickle.dumps((IMAGES, FLAGS)))
    angles = np.radians([[40.0 * i, 40.0 * i + (10 if mated else 90)] for i, mated in enumerate(FLAGS)]).reshape(-1)
    embeddings = 3.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    np.testing.assert_allclose(
        pairs.scores(embeddings), [np.cos(np.radians(10 if m else 90)) for m in FLAGS], atol=1e-12
    )
    assert pairs.accuracy(embeddings).mean == 1.0
    found = pairs.comparisons(embeddings)
    assert (found.num_mated, found.num_non_mated) == (8, 4)
    with pytest.raises(ConfigError, match="24 images"):
        pairs.scores(embeddings[:-1])
