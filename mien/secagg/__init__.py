"""Secure aggregation, protocol MSA2: the server learns the sum over a cohort and nothing of any one device.

Pairwise and self masks with t-of-k shares of both (Bonawitz et al., CCS 2017) on a k-regular graph (Bell et al., CCS
2020), with signed keys, a consistency round, and model, task, graph and roster bound into every derivation. Everything
here is a function of bytes, keys and the random bytes that are passed in.

`planner` chooses a round's terms, `DeviceRound` and `ServerRound` are the two roles, `wire` is the bytes between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mien._door import door

if TYPE_CHECKING:
    from mien.secagg.config import (
        AttemptId,
        CohortTerms,
        Mechanism,
        NoiseTerms,
        RoundConfig,
        StageDeadlines,
    )
    from mien.secagg.device import Assignment, AttemptLog, DevicePolicy, DeviceRound, MaskedInput, MemoryLog
    from mien.secagg.graph import Profile
    from mien.secagg.keys import EcdsaSigner, Ed25519Signer, Identity, Suite, VerifiedLeaf
    from mien.secagg.quantise import NumberFormat
    from mien.secagg.server import Elsewhere, Opening, ServerRound, ServerStage, Suspect
    from mien.secagg.vector import Addends, ContributionMap, OpenedSum

__all__ = [
    "Addends",
    "Assignment",
    "AttemptId",
    "AttemptLog",
    "CohortTerms",
    "ContributionMap",
    "DevicePolicy",
    "DeviceRound",
    "EcdsaSigner",
    "Ed25519Signer",
    "Elsewhere",
    "Identity",
    "MaskedInput",
    "Mechanism",
    "MemoryLog",
    "NoiseTerms",
    "NumberFormat",
    "OpenedSum",
    "Opening",
    "Profile",
    "RoundConfig",
    "ServerRound",
    "ServerStage",
    "StageDeadlines",
    "Suite",
    "Suspect",
    "VerifiedLeaf",
]

_HOME_OF: Final = {
    **dict.fromkeys(
        (
            "AttemptId",
            "CohortTerms",
            "Mechanism",
            "NoiseTerms",
            "RoundConfig",
            "StageDeadlines",
        ),
        "config",
    ),
    **dict.fromkeys(
        (
            "Assignment",
            "AttemptLog",
            "DevicePolicy",
            "DeviceRound",
            "MaskedInput",
            "MemoryLog",
        ),
        "device",
    ),
    **dict.fromkeys(("Profile",), "graph"),
    **dict.fromkeys(
        (
            "EcdsaSigner",
            "Ed25519Signer",
            "Identity",
            "Suite",
            "VerifiedLeaf",
        ),
        "keys",
    ),
    **dict.fromkeys(("NumberFormat",), "quantise"),
    **dict.fromkeys(
        (
            "Elsewhere",
            "Opening",
            "ServerRound",
            "ServerStage",
            "Suspect",
        ),
        "server",
    ),
    **dict.fromkeys(
        (
            "Addends",
            "ContributionMap",
            "OpenedSum",
        ),
        "vector",
    ),
}

__getattr__, __dir__ = door(__name__, _HOME_OF)
