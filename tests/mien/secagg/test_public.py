"""The package's public names, so that none comes or goes unnoticed."""

from __future__ import annotations

import mien.secagg


def test_public_names() -> None:
    assert mien.secagg.__all__ == sorted(mien.secagg.__all__)
    assert set(mien.secagg.__all__) == {
        *("Addends", "Assignment", "AttemptId", "AttemptLog", "CohortTerms", "ContributionMap", "DevicePolicy"),
        *("DeviceRound", "EcdsaSigner", "Ed25519Signer", "Elsewhere", "Identity", "MaskedInput", "Mechanism"),
        *(
            "MemoryLog",
            "NoiseTerms",
            "NumberFormat",
            "OpenedSum",
            "Opening",
            "Profile",
            "RoundConfig",
            "ServerRound",
            "ServerStage",
        ),
        *("StageDeadlines", "Suite", "Suspect", "VerifiedLeaf"),
    }
    assert all(hasattr(mien.secagg, name) for name in mien.secagg.__all__)
