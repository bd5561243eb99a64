"""Who must be there, on a ring of six with two neighbours each; computed by hand."""

from __future__ import annotations

from typing import Final

from mien.secagg.graph import Graph, Neighbourhood
from mien.secagg.quorum import Lack, able_to_share, first_lack, proof_of, secrets_needed

COMPLETE: Final = Graph(4, 3, bytes(32))
HOOD: Final = Neighbourhood(3, 2)
RING: Final = Graph(6, 2, bytes(32))
BESIDE: Final = {i: set(RING.neighbours(i)) for i in range(6)}


def test_on_a_ring_everybody_has_two_neighbours() -> None:
    assert all(len(beside) == 2 for beside in BESIDE.values())


def test_a_sharer_needs_t_neighbours_that_shared() -> None:
    assert able_to_share(COMPLETE, HOOD, {0, 1, 2}) == [0, 1, 2]
    assert able_to_share(COMPLETE, HOOD, {0, 1}) == []
    middle = 0
    assert able_to_share(RING, Neighbourhood(2, 2), {middle, *BESIDE[middle]}) == [middle]


def test_a_lost_sharers_secret_is_needed_only_beside_a_survivor() -> None:
    lost, survivor = 0, next(iter(BESIDE[0]))
    assert secrets_needed(RING, {lost, survivor}, {survivor}) == sorted({lost, survivor})
    far = next(i for i in range(1, 6) if i not in BESIDE[lost])
    assert secrets_needed(RING, {lost, far}, {far}) == [far]


def test_the_first_secret_that_lacks_holders_is_named() -> None:
    assert first_lack(COMPLETE, HOOD, [0, 1, 2, 3], {0, 1, 2}) is None
    assert first_lack(COMPLETE, HOOD, [3, 0], {0, 1}) == Lack(0, 1)
    assert first_lack(COMPLETE, HOOD, [], set()) is None


def test_a_signer_is_shown_t_neighbours_signatures_or_none() -> None:
    assert proof_of(COMPLETE, HOOD, 0, {0, 1, 2, 3}) == [1, 2]
    assert proof_of(COMPLETE, HOOD, 0, {0, 3}) is None
