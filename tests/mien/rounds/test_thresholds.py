"""An operator's own thresholds beside those that a public model brought."""

from __future__ import annotations

from mien.protocol.ids import ModelId
from mien.rounds.thresholds import with_own, with_rates
from mien.specs import GroupRate, Threshold


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


def rate(attribute: str, group: str, dataset: str, model_id: str = "a" * 64) -> GroupRate:
    return GroupRate(attribute, group, "measured", 1e-3, 0.4, 40, 1, 100_000, dataset, model_id, "2026-01-01")


def test_rates_take_the_place_of_those_by_the_same_attribute_on_the_same_data_alone() -> None:
    sex, elsewhere = rate("sex", "f", "own"), rate("age", "60+", "other")
    had = (rate("age", "0-12", "own"), sex, elsewhere, rate("sex", "m", "own", "b" * 64))
    anew = rate("age", "13-19", "own")
    assert with_rates(had, [anew], ModelId("a" * 64)) == (sex, elsewhere, anew)
