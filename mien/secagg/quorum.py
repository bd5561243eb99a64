"""Quorum of a masked sum: decisions over roster indices, apart from keys and messages.

The protocol's server (`server.ServerRound`) decides by these, and so does a simulator that sends no messages.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

from mien.secagg.graph import Graph, Neighbourhood


@dataclass(frozen=True)
class Lack:
    """Of whose secret there are too few holders, and how many there are."""

    owner: int
    holders: int


def able_to_share(graph: Graph, hood: Neighbourhood, sharers: Set[int]) -> list[int]:
    """Return the sharers of whose secrets at least t neighbours can hold a share."""
    return [i for i in sharers if len(sharers & set(graph.neighbours(i))) >= hood.t]


def secrets_needed(graph: Graph, sharers: Collection[int], masked: Set[int]) -> list[int]:
    """Return the members of which one secret is needed: survivors, and sharers that were lost beside a survivor."""
    return [i for i in sorted(sharers) if i in masked or masked & set(graph.neighbours(i))]


def first_lack(graph: Graph, hood: Neighbourhood, owners: Collection[int], holders: Set[int]) -> Lack | None:
    """Return the first of the owners with fewer than t of its neighbours among the holders; None for none."""
    for owner in owners:
        there = len(holders & set(graph.neighbours(owner)))
        if there < hood.t:
            return Lack(owner, there)
    return None


def proof_of(graph: Graph, hood: Neighbourhood, index: int, signers: Collection[int]) -> list[int] | None:
    """Return the t neighbours whose signatures a signer is shown; None where fewer signed, and it goes no further."""
    found = [i for i in graph.neighbours(index) if i in signers][: hood.t]
    return found if len(found) == hood.t else None
