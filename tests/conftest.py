"""What all tests share: how examples are drawn, and servers, started once a session where a test asks for them."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import forget_outside_methods
from tests.servers import postgres, s3
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

# Every run tries the same examples, however long a busy machine takes to draw them; `make fuzz` tries others.
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

# What is printed is as wide and as plain as in a pipe, whatever terminal the tests are started from.
for _name in ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)

# Next to nothing is garbage while modules are imported, and each search for some goes through more objects.
gc.disable()

# What a program says when it has been silent for a while is not said because a machine is busy.
os.environ["MIEN_PROGRESS_AFTER_S"] = "inf"

# A shell that runs the tests in the background has them ignore Ctrl-C, and with them the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold slow tests: one that came last would leave the other core without work."""
    first = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in first)


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later search for garbage: torch alone is a million objects."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let what a test draws without a seed of its own be the same in every run, whatever ran before in its process.

    A new network's weights are such draws; each process of torch or numpy begins with other ones.
    """
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` notes each time where it was called from
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)


@pytest.fixture(autouse=True)
def _methods_stay_in_their_test() -> Iterator[None]:
    """Forget the methods from outside that a test entered, itself or by a program that ran in this process.

    Which tests share a process depends on how fast each ends; a later one may ask for every known method.
    """
    yield
    forget_outside_methods()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL; a test that stops it starts it again. Skips where PostgreSQL is not installed."""
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A running S3-compatible server, its line whole. Skips where moto is not installed."""
    if reason := s3.missing():
        pytest.skip(reason)
    with s3.s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def cheap_passwords() -> Iterator[None]:
    """Let hashing a password of the dashboard cost next to nothing, for modules that do it often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coordinator.dashboard.accounts._SCRYPT_N", 2**10)
        yield


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database on PostgreSQL."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database: the test runs once on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    return str(request.getfixturevalue("postgres_url"))
