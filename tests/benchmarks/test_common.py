"""What every benchmark prints, whatever it measures."""

from __future__ import annotations

import json

import pytest

from benchmarks import _common


def test_every_result_says_where_and_how_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _common.run(lambda: {"figure": 1.5, "machine": "this one"}, only_json=True)
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["figure"], found["machine"]) == (1.5, "this one")
    assert found["command"].startswith("python -m benchmarks.")
    assert found["commit"]
