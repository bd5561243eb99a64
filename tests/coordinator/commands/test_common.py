"""Which task a word on the command line means, and what asking the coordinator loads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from coordinator.commands.common import find_task, home_flag
from mien.errors import ConfigError, NotFoundError
from mien.protocol.v1 import operator_pb2

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator


class _Listing:
    """A coordinator that lists these tasks."""

    def __init__(self, *tasks: tuple[str, str, str]) -> None:
        self._tasks = [operator_pb2.TaskStatus(task_id=i, name=name, state=state) for i, name, state in tasks]

    async def tasks(self) -> list[operator_pb2.TaskStatus]:
        return self._tasks


def found(wanted: str, *tasks: tuple[str, str, str]) -> str:
    return asyncio.run(find_task(cast("Coordinator", _Listing(*tasks)), wanted)).task_id


def test_an_id_its_beginning_or_a_name() -> None:
    tasks = ("aa11", "night", "running"), ("aa22", "day", "done")
    assert [found(word, *tasks) for word in ("aa11", "aa2", "day")] == ["aa11", "aa22", "aa22"]


def test_of_several_the_one_that_is_not_over() -> None:
    assert found("night", ("aa", "night", "cancelled"), ("bb", "night", "paused"), ("cc", "night", "done")) == "bb"


def test_several_that_go_on_are_named() -> None:
    with pytest.raises(ConfigError, match=r"several tasks fit 'night': aa \(running\), bb \(checking\)"):
        found("night", ("aa", "night", "running"), ("bb", "night", "checking"))
    with pytest.raises(ConfigError, match=r"aa \(done\), bb \(cancelled\)"):
        found("night", ("aa", "night", "done"), ("bb", "night", "cancelled"))


def test_none() -> None:
    with pytest.raises(NotFoundError, match="no task fits 'day'"):
        found("day", ("aa", "night", "running"))
    with pytest.raises(NotFoundError, match="no task fits ''"):  # as of an unset variable: not the only one there is
        found("", ("aa", "night", "running"))


@pytest.mark.parametrize("asks", ["operator.client", "operator.registrar_client"])
def test_asking_a_server_loads_nothing_that_computes_or_stores(asks: str) -> None:
    heavy = "{'numpy', 'torch', 'onnxruntime', 'cv2', 'sqlalchemy', 'alembic', 'fsspec', 'OpenSSL', 'structlog'}"
    code = f"import sys, coordinator.commands.cli, coordinator.{asks}; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_command_to_type_next_names_the_folder_where_it_is_not_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("MIEN_COORDINATOR_HOME", raising=False)
    assert home_flag(tmp_path / "mien" / "coordinator") == ""
    assert home_flag(Path("a fleet/coordinator")) == " --home 'a fleet/coordinator'"
    monkeypatch.setenv("MIEN_COORDINATOR_HOME", "fleet/coordinator")
    assert home_flag(Path("fleet/coordinator")) == ""
