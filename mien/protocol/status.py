"""Mien's errors as gRPC status and back: one table (`mien.errors.TABLE`), both directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import grpc

from mien.errors import (
    BY_CODE,
    TABLE,
    CorruptDataError,
    LateError,
    MienError,
    RateLimitedError,
    UnreachableError,
    VersionError,
)
from mien.protocol import PROTOCOL_VERSIONS
from mien.protocol.words import plain_words

CODE_KEY: Final = "mien-error"
RETRY_KEY: Final = "mien-retry-after-ms"
_MAX_DIGITS: Final = 12  # of milliseconds: thirty years; whoever says more has said nothing

# For status that no Mien server sent: the library's own, a proxy's, a dead connection's.
_FOREIGN: Final = {
    grpc.StatusCode.UNAVAILABLE: UnreachableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnreachableError,
    grpc.StatusCode.CANCELLED: UnreachableError,
    grpc.StatusCode.UNIMPLEMENTED: VersionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RateLimitedError,
    grpc.StatusCode.DATA_LOSS: CorruptDataError,
    grpc.StatusCode.ABORTED: LateError,
}


def to_status(error: MienError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return the status code, details and trailing metadata that carry `error` to the other side."""
    row = TABLE[type(error)]
    metadata: tuple[tuple[str, str], ...] = ((CODE_KEY, error.code),)
    if error.retry_after_s is not None:
        metadata += ((RETRY_KEY, str(int(error.retry_after_s * 1000))),)
    return grpc.StatusCode[row.grpc_status], error.message, metadata


def from_rpc_error(error: grpc.RpcError, *, peer: str) -> MienError:
    """Return the Mien error that a failed call stands for; `peer` names the server in messages.

    What the server said is made harmless to read; a pause that is no number, or longer than a life, counts as not said.
    """
    code, details = error.code(), plain_words(error.details() or "")
    pairs = _text_pairs(error.trailing_metadata() or ())
    retry = pairs.get(RETRY_KEY, "")
    is_number = retry.isascii() and retry.isdigit() and len(retry) <= _MAX_DIGITS
    retry_after_s = int(retry) / 1000 if is_number else None
    if cls := BY_CODE.get(pairs.get(CODE_KEY, "")):
        return cls(details, retry_after_s=retry_after_s)
    foreign = _FOREIGN.get(code, UnreachableError)
    helps = "upgrade the older of the two programs" if foreign is VersionError else "check address and network, retry"
    return foreign(f"{peer} did not answer as expected ({code.name}: {details[:200]}); {helps}")


def is_ours(error: grpc.RpcError) -> bool:
    """Return whether a Mien server sent the status of a failed call, not the library or a proxy."""
    return CODE_KEY in _text_pairs(error.trailing_metadata() or ())


def _text_pairs(metadata: Iterable[Any]) -> dict[str, str]:
    """Return trailing metadata as text; binary values are not ours and are left out."""
    return {str(key): value for key, value in metadata if isinstance(value, str)}


def choose_version(offered: list[int]) -> int:
    """Return the newest protocol version that both sides speak; raises VersionError when there is none."""
    common = [version for version in PROTOCOL_VERSIONS if version in offered]
    if not common:
        raise VersionError(
            f"caller speaks protocol versions {sorted(offered)[:8]}, this program speaks {sorted(PROTOCOL_VERSIONS)}; "
            "upgrade the older one"
        )
    return max(common)
