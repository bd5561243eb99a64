"""The one order of parameters: round trips, hashes, parts, and what is refused."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mien.errors import ConfigError, LayoutMismatchError, NonFiniteError
from mien.layout import ParameterEntry, ParameterLayout, ParameterPart, model_id

SMALL = ParameterLayout(
    (
        ParameterEntry("stem.weight", (2, 3)),
        ParameterEntry("stem.bias", (2,)),
        ParameterEntry("head.weight", (1, 2)),
        ParameterEntry("stem.mean", (2,), "buffer"),
    )
)

names = st.text(st.sampled_from("abc.0_"), min_size=1, max_size=8)
shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
entries = st.builds(ParameterEntry, names, shapes, st.sampled_from(["parameter", "buffer"]))
layouts = st.lists(entries, min_size=1, max_size=6, unique_by=lambda e: e.name).map(
    lambda rows: ParameterLayout(tuple(rows))
)


def numbers(layout: ParameterLayout, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)


def test_by_hand() -> None:
    assert SMALL.size == 6 + 2 + 2 + 2
    assert SMALL.offsets == {"stem.weight": 0, "stem.bias": 6, "head.weight": 8, "stem.mean": 10}
    vector = np.arange(12, dtype=np.float32)
    tensors = SMALL.unflatten(vector)
    assert tensors["stem.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["head.weight"].tolist() == [[8, 9]]


def test_hash_is_over_names_shapes_and_kinds_in_order() -> None:
    """Pinned: a manifest of another build must find the same digest."""
    text = (
        '[["stem.weight",[2,3],"parameter"],["stem.bias",[2],"parameter"],'
        '["head.weight",[1,2],"parameter"],["stem.mean",[2],"buffer"]]'
    )
    assert SMALL.sha256 == hashlib.sha256(text.encode()).hexdigest()
    changed = [
        ParameterLayout(SMALL.entries[::-1]),
        ParameterLayout(SMALL.entries[:3]),
        ParameterLayout((ParameterEntry("stem.weight", (3, 2)), *SMALL.entries[1:])),
        ParameterLayout((ParameterEntry("stem.weigth", (2, 3)), *SMALL.entries[1:])),
        ParameterLayout((*SMALL.entries[:3], ParameterEntry("stem.mean", (2,)))),
    ]
    assert len({layout.sha256 for layout in [SMALL, *changed]}) == 6


@given(layouts, st.integers(0, 2**32))
def test_flatten_and_unflatten_are_inverse(layout: ParameterLayout, seed: int) -> None:
    vector = numbers(layout, seed)
    tensors = layout.unflatten(vector)
    assert {name: t.shape for name, t in tensors.items()} == {e.name: e.shape for e in layout.entries}
    assert np.array_equal(layout.flatten(tensors), vector)
    assert layout.size == sum(math.prod(e.shape) for e in layout.entries)


@given(layouts)
def test_json_round_trip_keeps_the_hash(layout: ParameterLayout) -> None:
    again = ParameterLayout.from_json(layout.to_json())
    assert again == layout
    assert again.sha256 == layout.sha256


@given(layouts, st.data())
def test_gather_and_scatter_are_inverse_on_the_part(layout: ParameterLayout, data: st.DataObject) -> None:
    """scatter then gather gives the values back; what lies outside the part is untouched; the input is not changed."""
    chosen = data.draw(st.sets(st.sampled_from([e.name for e in layout.entries]), min_size=1))
    part = layout.part([n.replace("[", "[[]") for n in sorted(chosen)])
    assert part.names == tuple(e.name for e in layout.entries if e.name in chosen)
    theta, other = numbers(layout, 1), numbers(layout, 2)
    before = theta.copy()
    values = part.gather(other)
    assert values.shape == (part.size,)
    mixed = part.scatter(theta, values)
    assert np.array_equal(theta, before)
    assert np.array_equal(part.gather(mixed), values)
    for name, tensor in layout.unflatten(mixed).items():
        expected = other if name in chosen else theta
        assert np.array_equal(tensor, layout.unflatten(expected)[name])


@given(layouts)
def test_the_whole_is_the_default_part(layout: ParameterLayout) -> None:
    part = layout.part()
    theta = numbers(layout, 3)
    assert np.array_equal(part.gather(theta), theta)
    assert part.size == layout.size


def test_parts_sum_as_vectors_do() -> None:
    part = SMALL.part(["stem.*"])
    a, b = numbers(SMALL, 1), numbers(SMALL, 2)
    assert np.array_equal(part.gather(a) + part.gather(b), part.gather(a + b))


def test_part_by_hand() -> None:
    part = SMALL.part(["*.bias", "stem.mean"])
    assert part.names == ("stem.bias", "stem.mean")
    assert part.size == 4
    theta = np.arange(12, dtype=np.float32)
    assert part.gather(theta).tolist() == [6, 7, 10, 11]
    assert part.scatter(theta, -np.ones(4, np.float32)).tolist() == [0, 1, 2, 3, 4, 5, -1, -1, 8, 9, -1, -1]


def test_part_hashes_tell_parts_and_layouts_apart() -> None:
    other = ParameterLayout(SMALL.entries[:3])
    hashes = {p.sha256 for p in (SMALL.part(), SMALL.part(["stem.*"]), SMALL.part(["head.*"]), other.part(["head.*"]))}
    assert len(hashes) == 4
    assert SMALL.part(["stem.bias", "stem.mean"]).sha256 == SMALL.part(["stem.mean", "stem.bias"]).sha256


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'haed\.\*' matches no tensor"):
        SMALL.part(["stem.*", "haed.*"])
    with pytest.raises(ConfigError, match="part is empty"):
        SMALL.part([])
    with pytest.raises(ConfigError, match="part is empty"):
        ParameterPart(SMALL, ())


def test_parts_of_another_layout_are_refused() -> None:
    with pytest.raises(LayoutMismatchError, match="tail\\.weight"):
        ParameterPart(SMALL, ("stem.bias", "tail.weight"))
    with pytest.raises(LayoutMismatchError, match="twice"):
        ParameterPart(SMALL, ("stem.bias", "stem.bias"))
    with pytest.raises(LayoutMismatchError):
        SMALL.part(["head.*"]).scatter(np.zeros(12, np.float32), np.zeros(3, np.float32))


@pytest.mark.parametrize("size", [11, 13])
def test_vectors_of_another_size_are_refused(size: int) -> None:
    vector = np.zeros(size, np.float32)
    part = SMALL.part(["stem.*"])
    for use in (SMALL.check, SMALL.unflatten, part.gather, lambda v: part.scatter(v, np.zeros(10, np.float32))):
        with pytest.raises(LayoutMismatchError, match=r"12"):
            use(vector)


def test_check_by_hand() -> None:
    good = np.zeros(12, np.float32)
    assert SMALL.check(good) is good
    assert SMALL.check(np.zeros(24, np.float32)[::2]).flags.c_contiguous
    with pytest.raises(LayoutMismatchError, match="float64"):
        SMALL.check(np.zeros(12))  # type: ignore[arg-type]
    with pytest.raises(LayoutMismatchError, match="update of a device"):
        SMALL.check(np.zeros(5, np.float32), what="update of a device")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    vector = np.zeros(12, np.float32)
    vector[7] = value
    with pytest.raises(NonFiniteError, match="NaN or infinity"):
        SMALL.check(vector)
    with pytest.raises(NonFiniteError):
        SMALL.unflatten(vector)


def test_flatten_wants_exactly_these_tensors() -> None:
    tensors = dict(SMALL.unflatten(np.zeros(12, np.float32)))
    missing = {k: v for k, v in tensors.items() if k != "stem.bias"}
    with pytest.raises(LayoutMismatchError, match=r"missing \['stem\.bias'\]"):
        SMALL.flatten(missing)
    with pytest.raises(LayoutMismatchError, match=r"unknown \['more'\]"):
        SMALL.flatten({**tensors, "more": np.zeros(1)})
    with pytest.raises(LayoutMismatchError, match=r"stem\.bias has shape \(3,\), layout says \(2,\)"):
        SMALL.flatten({**tensors, "stem.bias": np.zeros(3)})


def test_names_are_unique_and_tensors_not_empty() -> None:
    with pytest.raises(ConfigError, match="twice"):
        ParameterLayout((ParameterEntry("a", (1,)), ParameterEntry("a", (2,))))
    with pytest.raises(ConfigError, match="empty tensor"):
        ParameterLayout((ParameterEntry("a", (1, 0)),))


@pytest.mark.parametrize(
    "rows",
    [
        [{}],
        [{"name": "a", "shape": [1]}],
        [{"name": 3, "shape": [1], "kind": "parameter"}],
        [{"name": "a", "shape": "1", "kind": "parameter"}],
        [{"name": "a", "shape": [0], "kind": "parameter"}],
        [{"name": "a", "shape": [-1], "kind": "parameter"}],
        [{"name": "a", "shape": [True], "kind": "parameter"}],
        [{"name": "a", "shape": [1.5], "kind": "parameter"}],
        [{"name": "a", "shape": [1], "kind": "counter"}],
        [{"name": "a", "shape": [1], "kind": "buffer"}] * 2,
        ["a"],
        [None],
    ],
)
def test_malformed_manifests_are_refused(rows: list[dict[str, object]]) -> None:
    with pytest.raises(LayoutMismatchError, match="fetch the model again"):
        ParameterLayout.from_json(rows)


def test_model_id_is_content_addressed() -> None:
    layout_hash = "ab" * 32
    theta = np.array([1.0, -2.0], np.float32)
    expected = hashlib.sha256(bytes.fromhex(layout_hash) + b"\x00\x00\x80\x3f" + b"\x00\x00\x00\xc0").hexdigest()
    assert model_id(layout_hash, theta) == expected
    assert model_id("cd" * 32, theta) != expected
    assert model_id(layout_hash, theta[::-1]) != expected
    assert model_id(layout_hash, theta.astype(">f4")) == expected  # type: ignore[arg-type]


def test_a_change_is_what_is_left_of_the_part_without_the_vector() -> None:
    """Of a part with a gap in the vector."""
    part = SMALL.part(("stem.weight", "head.weight"))
    theta, values = np.arange(12, dtype=np.float32), np.arange(100, 108, dtype=np.float32)
    change = part.change(theta, values)
    np.testing.assert_array_equal(change, [100, 100, 100, 100, 100, 100, 98, 98])
    np.testing.assert_array_equal(values, np.arange(100, 108))
    with pytest.raises(LayoutMismatchError, match="use the assigned model"):
        part.change(theta, values[1:])
    with pytest.raises(LayoutMismatchError, match="use the assigned model"):
        part.change(theta[1:], values)


def test_runs_laid_end_to_end_are_what_is_gathered_and_copy_nothing() -> None:
    layout = ParameterLayout(tuple(ParameterEntry(name, (3,)) for name in "abcd"))
    part, theta = layout.part(("a", "c", "d")), np.arange(12, dtype=np.float32)
    runs = part.runs(theta)
    assert [len(run) for run in runs] == [3, 6], "neighbours are one run"
    np.testing.assert_array_equal(np.concatenate(runs), part.gather(theta))
    assert all(np.shares_memory(run, theta) for run in runs)
    with pytest.raises(LayoutMismatchError):
        part.runs(theta[:-1])


def test_what_is_not_finite_is_found_wherever_it_is_in_a_long_vector() -> None:
    """A vector is looked through in pieces."""
    layout = ParameterLayout((ParameterEntry("long", (2 * 2**18 + 5,)),))
    for at in (0, 2**18 - 1, 2**18, layout.size - 1):
        vector = np.zeros(layout.size, np.float32)
        assert layout.check(vector) is not None
        vector[at] = np.inf
        with pytest.raises(NonFiniteError):
            layout.check(vector)
