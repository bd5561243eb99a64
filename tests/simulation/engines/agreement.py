"""Whether two runs are the same, to the tolerance of float32 sums that were taken in another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from mien.contribution import Arrays
from simulation.engines.engine import Run

TOLERANCE = 5e-5

KEPT_TOLERANCE = 2e-4
"""Of what phones and server keep: vectors of one length that several steps have turned, by last digits of other sums
4e-5 apart on processors without wide instructions."""


def assert_same(found: Run, expected: Run, *, without: tuple[str, ...] = ()) -> None:
    """Assert that models, server's arrays, what is kept and shown, and records agree, those but for `without`."""
    np.testing.assert_allclose(found.state.theta, expected.state.theta, atol=TOLERANCE)
    _assert_arrays({"server": found.state.arrays}, {"server": expected.state.arrays})
    _assert_arrays(found.state.revealed, expected.state.revealed)
    _assert_arrays(found.cohort.private, expected.cohort.private)
    _assert_arrays(found.cohort.validator_private, expected.cohort.validator_private)
    assert len(found.records) == len(expected.records)
    for record, wanted in zip(found.records, expected.records, strict=True):
        assert record.devices == wanted.devices
        for field in dataclasses.fields(record):
            if field.name in ("devices", *without):
                continue
            values = getattr(record, field.name), getattr(wanted, field.name)
            if field.name == "warning":
                assert values[0] == values[1]
                continue
            np.testing.assert_allclose(*values, atol=TOLERANCE, rtol=1e-4, err_msg=field.name)


def _assert_arrays(found: Mapping[str, Arrays], expected: Mapping[str, Arrays]) -> None:
    assert found.keys() == expected.keys()
    for owner, arrays in expected.items():
        assert found[owner].keys() == arrays.keys()
        for name, values in arrays.items():
            where = f"{owner} {name}"
            np.testing.assert_allclose(found[owner][name], values, atol=KEPT_TOLERANCE, rtol=1e-3, err_msg=where)
