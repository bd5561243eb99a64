"""Shares over GF(2^8): against plain integers, all subsets, below the threshold, and with wrong shares among them."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.errors import ConfigError, CorruptDataError
from mien.secagg import shamir
from tests.mien.secagg import reference
from tests.mien.secagg.cohort import drbg

SECRET = bytes(range(100, 132))


def test_the_tables_are_the_field() -> None:
    assert all(shamir.MUL[a, b] == reference.gf_multiply(a, b) for a in range(256) for b in range(0, 256, 5))
    powers = [1]
    for _ in range(254):
        powers.append(reference.gf_multiply(powers[-1], 3))
    assert shamir.EXP.tolist() == powers
    assert len(set(powers)) == 255
    assert all(shamir.LOG[value] == power for power, value in enumerate(powers))


def test_shares_are_values_of_the_polynomial() -> None:
    # 5 + 7 x + 11 x^2 in GF(2^8), computed on paper: x = 2 gives 5 ^ 14 ^ 44, x = 3 gives 5 ^ 9 ^ 39.
    shares = shamir.split(b"\x05", 3, 3, lambda size: bytes([7, 11]))
    assert [share[0] for share in shares] == [5 ^ 7 ^ 11, 5 ^ 14 ^ 44, 5 ^ 9 ^ 39]


@given(st.integers(1, 9), st.integers(0, 6), st.binary(min_size=1, max_size=5), st.integers(0, 1000))
def test_any_t_shares_give_the_secret_as_plain_integers_do(t: int, more: int, secret: bytes, seed: int) -> None:
    shares = shamir.split(secret, t, t + more, drbg(f"shamir {seed}"))
    chosen = random.Random(seed).sample(range(1, t + more + 1), t)
    subset = {x: shares[x - 1] for x in chosen}
    assert shamir.combine(subset, t) == secret == reference.combine(subset)


def test_all_three_of_five() -> None:
    shares = shamir.split(SECRET, 3, 5, drbg("five"))
    for chosen in itertools.combinations(range(1, 6), 3):
        assert shamir.combine({x: shares[x - 1] for x in chosen}, 3) == SECRET


def test_two_of_three_shares_fit_every_secret() -> None:
    """For each value that the secret could have, there is a third share that leads to it."""
    shares = shamir.split(b"\x2a", 3, 5, drbg("below"))
    known = {1: shares[0], 4: shares[3]}
    reached = {shamir.combine({**known, 5: bytes([third])}, 3) for third in range(256)}
    assert len(reached) == 256


def test_exactly_t_shares_are_combined() -> None:
    shares = dict(enumerate(shamir.split(SECRET, 3, 5, drbg("exact")), start=1))
    for count in (2, 4):
        with pytest.raises(CorruptDataError, match="3 shares are needed"):
            shamir.combine({x: shares[x] for x in list(shares)[:count]}, 3)
    # Two shares pass as two of two, but lead elsewhere.
    assert shamir.combine({x: shares[x] for x in (1, 2)}, 2) != SECRET


@pytest.mark.parametrize("bad", [{0: b"a", 1: b"b"}, {1: b"a", 256: b"b"}, {1: b"a", 2: b"bc"}])
def test_impossible_shares_are_refused(bad: dict[int, bytes]) -> None:
    with pytest.raises(CorruptDataError):
        shamir.combine(bad, 2)


@pytest.mark.parametrize(("t", "k"), [(0, 3), (4, 3), (2, 256)])
def test_impossible_splits_are_refused(t: int, k: int) -> None:
    with pytest.raises(ConfigError):
        shamir.split(SECRET, t, k, drbg("no"))


def spoil(share: bytes, byte: int = 0) -> bytes:
    return share[:byte] + bytes([share[byte] ^ 1]) + share[byte + 1 :]


def test_two_wrong_of_five_are_found_by_trying_all_subsets() -> None:
    shares = dict(enumerate(shamir.split(SECRET, 3, 5, drbg("found")), start=1))
    for wrong in itertools.combinations(shares, 2):
        given_ = {x: spoil(share, x) if x in wrong else share for x, share in shares.items()}
        recovered = shamir.recover(given_, 3, lambda secret: secret == SECRET)
        assert recovered is not None
        assert recovered.secret == SECRET
        # Wrong shares behind the first t are not looked for when the first t fit.
        assert recovered.wrong == (frozenset(wrong) if min(wrong) <= 3 else frozenset())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_up_to_half_the_surplus_may_be_wrong(seed: int) -> None:
    rng = random.Random(seed)
    t, k = 20, 33
    shares = dict(enumerate(shamir.split(SECRET, t, k, drbg(f"gao {seed}")), start=1))
    wrong = set(rng.sample(sorted(shares), rng.randint(1, (k - t) // 2)))
    given_ = {x: spoil(share, rng.randrange(32)) if x in wrong else share for x, share in shares.items()}
    order = rng.sample(sorted(given_), k)
    recovered = shamir.recover({x: given_[x] for x in order}, t, lambda secret: secret == SECRET)
    assert recovered is not None
    assert recovered.secret == SECRET
    assert recovered.wrong == (wrong if wrong & set(order[:t]) else frozenset())


def test_more_wrong_shares_than_can_be_located_give_nothing() -> None:
    t, k = 20, 33
    shares = dict(enumerate(shamir.split(SECRET, t, k, drbg("too many")), start=1))
    given_ = {x: bytes(32) if x <= 14 else share for x, share in shares.items()}
    assert shamir.recover(given_, t, lambda secret: secret == SECRET) is None


def test_all_zero_and_constant_polynomials_are_located_too() -> None:
    """A secret of zeros with t - 1 zero coefficients: every right share is zero."""
    t, k = 12, 24
    shares = {x: bytes(2) for x in range(1, k + 1)}
    shares[3] = b"\x01\x00"
    recovered = shamir.recover(shares, t, lambda secret: secret == bytes(2))
    assert recovered is not None
    assert recovered.wrong == {3}


def test_fewer_than_t_shares_recover_nothing() -> None:
    shares = dict(enumerate(shamir.split(SECRET, 4, 6, drbg("few")), start=1))
    assert shamir.recover({x: shares[x] for x in (1, 2, 3)}, 4, lambda secret: True) is None


def test_a_recovered_secret_does_not_show() -> None:
    assert "secret" not in repr(shamir.Recovered(SECRET, frozenset()))
