"""Partitions: the papers' own numbers, everybody in one place only, refusals, seeds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.errors import ConfigError, EmptyFolderError
from simulation.faces.partitions import Holding, Partition, PartitionSpec, build, equal, log_normal

PEOPLE = {f"p{i:03d}": 4 + i % 7 for i in range(60)}


def counted(**changes: Any) -> dict[str, int]:
    return build(PartitionSpec(**changes), PEOPLE).summary()


def test_one_identity_per_phone() -> None:
    partition = build(PartitionSpec("one_identity", clients=20, public=10, test=15), PEOPLE)
    assert [len(held) for held in partition.clients.values()] == [1] * 20
    assert partition.summary()["public_identities"] == 10
    assert partition.summary()["test_identities"] == 15
    assert next(iter(partition.clients)) == "client-00"
    for held in partition.clients.values():
        assert held[0].images == tuple(range(PEOPLE[held[0].identity]))


def test_equal_clients_with_probes() -> None:
    partition = build(
        PartitionSpec("equal", clients=5, identities=20, min_images=6, train_images=4, probe_images=2), PEOPLE
    )
    assert [len(held) for held in partition.clients.values()] == [4] * 5
    assert {h.images for held in partition.clients.values() for h in held} == {(0, 1, 2, 3)}
    assert {h.images for held in partition.probes.values() for h in held} == {(4, 5)}
    for client, held in partition.clients.items():
        assert [h.identity for h in partition.probes[client]] == [h.identity for h in held]


def test_log_normal_sizes_follow_the_distribution_and_add_up() -> None:
    names = [f"p{i}" for i in range(10_000)]
    sizes = np.array([len(held) for held in log_normal(names, 200, 1.0, 5).values()])
    assert sizes.sum() == 10_000
    assert sizes.min() >= 1
    assert np.log(sizes).std() == pytest.approx(1.0, abs=0.15)
    assert len({len(held) for held in equal(names, 200, 5).values()}) == 1


def test_by_domain() -> None:
    people = {f"{domain}_{i}": 5 for domain in ("asia", "europe", "rest") for i in range(12)}
    spec = PartitionSpec("by_domain", domain_clients={"asia": 1, "europe": 4})
    partition = build(spec, people, lambda name: name.split("_")[0])
    assert list(partition.clients) == ["asia-0", "europe-0", "europe-1", "europe-2", "europe-3"]
    assert [len(held) for held in partition.clients.values()] == [12, 3, 3, 3, 3]
    assert all(h.identity.startswith("europe") for h in partition.clients["europe-2"])
    with pytest.raises(EmptyFolderError, match="domain 'mars' has 0 identities left for 1 clients; known: asia"):
        build(PartitionSpec("by_domain", domain_clients={"mars": 1}), people, lambda name: name.split("_")[0])


def test_shared_identities_split_their_images() -> None:
    partition = build(PartitionSpec("equal", clients=4, identities=40, shared=0.25), PEOPLE)
    held = Counter(h.identity for each in partition.clients.values() for h in each)
    assert Counter(held.values()) == {1: 30, 2: 10}
    assert {name for name, times in held.items() if times == 2} == partition.shared
    for name in partition.shared:
        parts = [h.images for each in partition.clients.values() for h in each if h.identity == name]
        assert sorted(image for part in parts for image in part) == list(range(PEOPLE[name]))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["one_identity", "equal", "log_normal"]),
    st.integers(1, 20),
    st.integers(0, 15),
    st.integers(0, 15),
    st.integers(0, 5),
)
def test_nobody_is_in_two_places(scheme: Any, clients: int, public: int, test: int, seed: int) -> None:
    spec = PartitionSpec(scheme, clients=clients, public=public, test=test, seed=seed)
    partition = build(spec, PEOPLE)
    trained = {h.identity for held in partition.clients.values() for h in held}
    groups = [trained, {h.identity for h in partition.public}, {h.identity for h in partition.test}]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert len(partition.clients) == clients
    assert build(spec, PEOPLE) == partition


def test_another_seed_is_another_split() -> None:
    one, other = (build(PartitionSpec(clients=10, seed=seed), PEOPLE) for seed in (0, 1))
    assert one.clients != other.clients


A, B = Holding("a", (0, 1)), Holding("b", (0,))


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        ({"clients": {"x": (A,)}, "test": (Holding("a", (7,)),)}, "a and 0 others are among the clients and the test"),
        ({"clients": {"x": (A,)}, "public": (B,), "test": (B,)}, "among the public people and the test people"),
        ({"clients": {"x": (A,), "y": (Holding("a", (5,)),)}}, "without being a shared identity"),
        ({"clients": {"x": (A,), "y": (A,)}, "shared": frozenset("a")}, "image 0 of a is in two places"),
        ({"clients": {"x": (A,)}, "probes": {"x": (Holding("a", (1,)),)}}, "image 1 of a is in two places"),
        ({"clients": {"x": (Holding("a", ()),)}}, "holds no image"),
        ({"clients": {}}, "there is no client"),
        ({"clients": {"x": (A,)}, "probes": {"z": (B,)}}, "no clients"),
    ],
)
def test_overlap_is_refused(partition: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Partition(**partition)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"clients": 61}, EmptyFolderError, "60 people have at least 1 images; 0 go to tests"),
        (
            {"clients": 50, "test": 20},
            EmptyFolderError,
            "20 go to tests and 0 to public, so that 40 are left; 50 clients",
        ),
        ({"public": 50, "test": 20}, EmptyFolderError, "so that 0 are left; .*lower partition.clients, .test"),
        ({"scheme": "equal", "clients": 2, "identities": 61}, EmptyFolderError, "61 identities were asked for"),
        ({"scheme": "equal", "clients": 9, "identities": 4}, EmptyFolderError, "cannot be divided among 9 clients"),
        ({"shared": 1.5}, ConfigError, "partition.shared is 1.5"),
        ({"sigma": 0.0}, ConfigError, "partition.sigma"),
        ({"train_images": 5}, ConfigError, "raise it to 5"),
        ({"probe_images": 5, "min_images": 5}, ConfigError, "leaves no image to train on; raise it to 6"),
        ({"scheme": "by_domain"}, ConfigError, "domain_clients"),
        ({"seed": -1}, ConfigError, "partition.seed is -1"),
        ({"seed": 1 << 63}, ConfigError, "partition.seed is 9223372036854775808; it must lie between 0 and"),
    ],
)
def test_wrong_specs_are_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        counted(**changes)


def test_public_people_are_those_who_have_labels() -> None:
    """They go out with labels: one of an unlabelled domain would tell a target its own people."""
    counts = {f"{domain}_{i}": 3 for domain in ("source", "target") for i in range(20)}
    spec = PartitionSpec(scheme="by_domain", domain_clients={"source": 1, "target": 2}, public=12, test=6)
    domain = lambda name: name.partition("_")[0]  # noqa: E731
    made = build(spec, counts, domain, lambda name: domain(name) == "source")
    assert {domain(held.identity) for held in made.public} == {"source"}
    assert (len(made.public), len(made.test), len(made.clients)) == (12, 6, 3)
    assert {domain(held.identity) for held in build(spec, counts, domain).public} == {"source", "target"}
