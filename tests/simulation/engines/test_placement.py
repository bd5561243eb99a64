"""The cut of a cohort: everybody once, evenly filled, and the same for the same cohort."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulation.engines.placement import Shard, shards_of


def test_the_largest_go_first_each_to_the_least_filled() -> None:
    """By hand, two shards: e 9 | d 6, then c joins d: 11, b joins e: 13, a joins d: 13."""
    images = {"a": 2, "b": 4, "c": 5, "d": 6, "e": 9}
    assert shards_of(images, per_shard=3) == (Shard(("b", "e"), 13), Shard(("a", "c", "d"), 13))


def test_a_cohort_of_one_and_of_none() -> None:
    assert shards_of({"a": 3}) == (Shard(("a",), 3),)
    assert shards_of({}) == ()


@given(st.dictionaries(st.text(max_size=4), st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 20))
def test_everybody_is_in_one_shard_and_none_is_much_fuller_than_another(images: dict[str, int], per_shard: int) -> None:
    shards = shards_of(images, per_shard)
    assert sorted(name for shard in shards for name in shard.devices) == sorted(images)
    assert [shard.images for shard in shards] == [sum(images[name] for name in shard.devices) for shard in shards]
    assert [shard.images for shard in shards] == sorted((shard.images for shard in shards), reverse=True)
    assert shards == shards_of(dict(reversed(images.items())), per_shard)
    number = -(-len(images) // per_shard)
    assert len(shards) == number  # no shard is empty: each image count is at least 1
    # Graham's bound, with what any cut must give to one shard in the place of the best cut.
    must = max(max(images.values()), -(-sum(images.values()) // number))
    assert shards[0].images <= 2 * must
