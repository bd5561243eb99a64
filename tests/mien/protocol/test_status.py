"""A failed call as the other side sees it: whatever a server says comes as a Mien error that can be read and obeyed."""

from __future__ import annotations

import sys

import grpc
import pytest

from mien.errors import RateLimitedError, UnreachableError
from mien.protocol.status import CODE_KEY, RETRY_KEY, from_rpc_error
from mien.protocol.words import MAX_WORDS, plain_words


class Refusal(grpc.RpcError):
    """What gRPC raises, with everything in it chosen by the server."""

    def __init__(self, details: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self._details, self._metadata = details, metadata

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


def told(retry: str, details: str = "slow down") -> RateLimitedError:
    error = from_rpc_error(Refusal(details, ((CODE_KEY, "rate_limited"), (RETRY_KEY, retry))), peer="the server")
    assert isinstance(error, RateLimitedError)
    return error


@pytest.mark.parametrize(("retry", "pause_s"), [("1500", 1.5), ("0", 0.0), ("9" * 12, 999_999_999.999)])
def test_a_pause_is_carried(retry: str, pause_s: float) -> None:
    assert told(retry).retry_after_s == pause_s


@pytest.mark.parametrize("retry", ["", "9" * 13, "9" * 400, "9" * 5000, "\u00b2", "\u0663", "-1", "1.5", "nan", "inf"])
def test_a_pause_that_no_server_means_was_not_said(retry: str) -> None:
    assert told(retry).retry_after_s is None


def test_details_come_without_control_and_format_characters() -> None:
    details = "\x1b]0;mine\x07\x1b[2J\u202egnp\nMatch: Bob"
    assert told("", details).message == "]0;mine[2Jgnp Match: Bob"
    foreign = from_rpc_error(Refusal(details, ((CODE_KEY, "none of ours"),)), peer="the server")
    assert foreign.message.isprintable()
    assert isinstance(foreign, RateLimitedError)
    assert not isinstance(foreign, UnreachableError)


def test_words_are_printable_and_short() -> None:
    for start in range(0, sys.maxunicode + 1, MAX_WORDS):
        text = "".join(map(chr, range(start, min(start + MAX_WORDS, sys.maxunicode + 1))))
        words = plain_words(text)
        assert words.isprintable()
        assert words.replace(" ", "") == "".join(c for c in text if c.isprintable() and c != " ")
    assert plain_words("x" * MAX_WORDS) == "x" * MAX_WORDS
    assert len(plain_words("x" * (MAX_WORDS + 1))) == MAX_WORDS
