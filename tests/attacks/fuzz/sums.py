"""What the devices and the server of a private sum say to each other, recorded for a fuzzer to begin from."""

from __future__ import annotations

from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm

from mien.errors import CertificateError
from mien.secagg import RoundConfig, ServerRound, VerifiedLeaf
from mien.secagg.wire import Advertise, Entry
from tests.mien.secagg.cohort import Cohort, people, verify


def messages(config: RoundConfig) -> tuple[dict[int, list[bytes]], Entry, Any]:
    """Return every message of one honest sum by its number, the first device's entry, and who vouches."""
    cohort = Cohort.of(config, people(config.cohort.n_max))
    cohort.run()
    said = {0: [ServerRound(config, verify=verify).invite]}
    for (kind, _), message in cohort.wire.items():
        said.setdefault(kind, []).append(message)
    return said, Advertise.from_bytes(said[1][0]).entry, _verify


def _verify(leaf: bytes) -> VerifiedLeaf:
    """Believe as the tests' cohort does, and refuse also what its library does not know."""
    try:
        return verify(leaf)
    except UnsupportedAlgorithm as error:
        raise CertificateError("not one of ours") from error
