"""Phones of the JVM that are told where their tasks are run: they go there, come back, and follow nobody elsewhere."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from device_sdk.models.models import Model
from mien.layout import model_id
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.android.jvm import JvmDevice
from tests.android.story import TINY, Story, signed_story, three_phones
from tests.integration.real_fleet import lying
from tests.servers.relay import Relay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MODEL: Final = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
POPULATION: Final = "told"
LIMIT_S: Final = 120.0


@pytest.fixture(scope="module")
def lie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lie") / "lie.json"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, lie: Path) -> Iterator[Story]:
    with lying(lie), signed_story(tmp_path_factory.mktemp("owner-address")) as running:
        running.release(MODEL)
        yield running


def tell(lie: Path, address: str) -> None:
    """Have every check-in's answer name an address from now on."""
    lie.write_text(json.dumps({"victim": "nobody", "model_id": "none", "owner_address": address}))


def task(name: str) -> TaskSpec:
    return TaskSpec(
        name,
        method="fedavg",
        rounds=1,
        population=POPULATION,
        trainable=TINY.spec.trainable,
        cohort=CohortSpec(size=3, min_reports=3),
        deadlines=DeadlineSpec(120.0, 120.0, *(120.0,) * 5),
        local=LocalSpec(lr=0.05),
        options={"margin": 1.0},
        privacy=PrivacySpec(min_cohort=3),
    )


def take_part(phone: JvmDevice) -> dict[str, Any]:
    """Have a phone look for work until there was some, and return how that ended."""
    while (outcome := phone.do("participate", min_cohort=3, unmet=[], max_sums_per_model=4))["kind"] == "WAIT":
        pass
    return outcome


def test_phones_go_where_they_are_told_and_come_back(story: Story, lie: Path, tmp_path: Path) -> None:
    coordinator, loop = story.fleet.coordinator.address, story.fleet.loop
    with three_phones(story, POPULATION, tmp_path) as phones, ThreadPoolExecutor(3) as pool:
        # 1. Another port of the host: it is there that the round goes on.
        there = Relay([int(coordinator.rpartition(":")[2])])
        loop.run(there.__aenter__())
        tell(lie, there.address)
        story.fleet.submit(task("there"))
        assert [outcome["kind"] for outcome in pool.map(take_part, phones)] == ["COUNTED"] * 3
        assert there.num_taken >= 3
        # A new process begins there, and asks nobody else.
        tell(lie, "")
        phones[0].kill()
        phones[0], before = JvmDevice(phones[0].home), there.num_taken
        assert phones[0].do("participate", min_cohort=3, unmet=[], max_sums_per_model=4)["kind"] == "WAIT"
        assert there.num_taken == before + 1
        tell(lie, there.address)
        # 2. It ends in the middle of a round, which goes on at the first address.
        before, end = there.num_taken, time.monotonic() + LIMIT_S
        story.fleet.submit(task("and-back"))
        going = [pool.submit(take_part, phone) for phone in phones]
        while there.num_taken < before + 3:
            assert time.monotonic() < end, "nobody came"
            time.sleep(0.01)
        loop.run(there.close())
        assert [each.result()["kind"] for each in going] == ["COUNTED"] * 3
        # 3. A server of another authority on the same host, and another host: nobody goes there, and the round goes on.
        with socket.socket() as listening:
            listening.bind(("127.0.0.2", 0))
            listening.listen()
            listening.setblocking(False)
            for name, address in (
                ("a-stranger", f"localhost:{story.fleet.admin_address.rpartition(':')[2]}"),
                ("elsewhere", f"127.0.0.2:{listening.getsockname()[1]}"),
            ):
                tell(lie, address)
                story.fleet.submit(task(name))
                assert [outcome["kind"] for outcome in pool.map(take_part, phones)] == ["COUNTED"] * 3
            with pytest.raises(BlockingIOError):
                listening.accept()
