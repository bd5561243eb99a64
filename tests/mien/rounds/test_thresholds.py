"""An operator's own thresholds beside those that a public model brought."""

from __future__ import annotations

from mien.rounds.thresholds import with_own
from mien.specs import Threshold


def at(fmr: float, dataset: str) -> Threshold:
    return Threshold(0.4, fmr, dataset, 100, 100_000, "a" * 64, "2026-01-01")


BROUGHT = (at(1e-2, "LFW"), at(1e-3, "LFW"), at(1e-5, "LFW, templates"))


def test_one_that_phones_do_not_decide_with_joins_those_that_were_brought() -> None:
    coarse = at(1e-2, "own")
    assert with_own(BROUGHT, coarse, brought=BROUGHT) == (*BROUGHT, coarse)


def test_the_first_that_decides_takes_their_place_and_keeps_the_operators() -> None:
    coarse, fine, finer = at(1e-2, "own"), at(1e-3, "own"), at(1e-4, "own")
    kept = with_own((*BROUGHT, coarse), fine, brought=BROUGHT)
    assert kept == (coarse, fine)
    assert with_own(kept, finer, brought=BROUGHT) == (coarse, fine, finer)


def test_several_that_were_measured_together_take_their_place_as_one_does() -> None:
    coarse, fine = at(1e-2, "own"), at(1e-3, "own")
    assert with_own(BROUGHT, coarse, fine, brought=BROUGHT) == (coarse, fine)
    assert with_own((coarse, fine), coarse, fine, brought=BROUGHT) == (coarse, fine)


def test_a_model_that_brought_none_keeps_all() -> None:
    assert with_own(BROUGHT, at(1e-3, "own"), brought=()) == (*BROUGHT, at(1e-3, "own"))
