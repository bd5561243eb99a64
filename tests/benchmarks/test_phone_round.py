"""The benchmark of a phone's round runs, and counts what there is to count."""

from __future__ import annotations

from benchmarks.phone_round import PARAMETERS, row


def test_a_round_of_three_phones_is_taken_apart() -> None:
    found = row(66, 3)
    assert found["phones"] == 3
    assert found["connecting_cpu_ms_per_phone"] > 0
    assert found["server_cpu_ms_per_phone"] < 60_000
    assert 4 * PARAMETERS[66] < found["bytes_sent_per_phone"] < found["bytes_per_phone"]
    assert found["messages_per_phone"] >= 26, "Hello, ProveRound, ReportTrained, status and steps, and their answers"
    assert found["peak_mb"] > 20
