"""Metrics and health of a real coordinator, scraped over HTTP around a real round and parsed as Prometheus does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.commands.doctor import CoordinatorChecks
from coordinator.dashboard.chain import ChainState
from coordinator.dashboard.reading import Reader
from coordinator.dashboard.situation import Surveyor
from coordinator.dashboard.views import fleet as fleets
from coordinator.dashboard.views.overview import overview
from mien.errors import MienError, NotFoundError, RateLimitedError, UnreachableError
from mien.protocol.v1 import rounds_pb2
from mien.shell.clock import Clock
from mien.shell.doctor import Finding
from mien.shell.pages import Table
from mien.specs import CohortSpec
from simulation.testing import FakeDevice, FakeFleet, contribution, free_port, tiny_task
from tests.helpers import ROOT, raised, run


def monitoring(fleet: FakeFleet) -> Finding:
    """Return what doctor finds out about monitoring."""
    findings = run(CoordinatorChecks(fleet.home, lambda: datetime.now(UTC)).examine())
    return next(finding for finding in findings if finding.name == "monitoring")


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    """A running coordinator that tells monitoring."""
    fleet = FakeFleet(tmp_path_factory.mktemp("monitoring"), metrics_port=free_port(), check_in_hold_s=100.0)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()


def get(fleet: FakeFleet, path: str) -> tuple[int, str]:
    """Return status and body."""
    url = f"http://127.0.0.1:{fleet.home.resolve().config.metrics_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(fleet: FakeFleet) -> Samples:
    status, text = get(fleet, "/metrics")
    assert status == 200
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


async def until_held(fleet: FakeFleet, count: int) -> None:
    """Return once the coordinator holds so many check-ins."""
    while value(await asyncio.to_thread(scrape, fleet), "mien_waiting_check_ins") < count:
        await asyncio.sleep(0.05)


def test_a_round_can_be_followed_in_the_metrics(fleet: FakeFleet) -> None:
    before = scrape(fleet)
    assert value(before, "mien_rounds_total", population="watched", outcome="closed") == 0

    async def story() -> Samples:
        async with fleet.operator() as operator, fleet.devices("watched", 4) as devices:
            await fleet.release_tiny_model(operator)
            await operator.submit(tiny_task("watched", "watched", rounds=1), token="watched")
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            await devices[0].report_trained(assignments[0].round)
            during = await asyncio.to_thread(scrape, fleet)
            error = await raised(devices[0].upload_status(rounds_pb2.RoundRef(task_id="none", round=1, attempt=1)))
            assert isinstance(error, NotFoundError)
            make = lambda task, a: contribution(task, a.round.round)  # noqa: E731
            await asyncio.gather(*(device.take_part(make) for device in devices))
            await devices[0].until(assignments[0].round, rounds_pb2.CLOSED)
            return during

    during, after = run(story()), scrape(fleet)
    task = {"task": "watched", "population": "watched"}
    assert value(during, "mien_task_stage", **task, stage="training") == 1
    assert value(during, "mien_round_devices", **task, step="selected") == 3
    assert value(during, "mien_round_devices", **task, step="trained") == 1
    assert value(after, "mien_rounds_total", population="watched", outcome="closed") == 1
    assert value(after, "mien_uploads_total") == 4
    assert value(after, "mien_upload_bytes_total") > 4 * 4 * 200
    assert value(after, "mien_refused_calls_total", method="Rounds/GetUploadStatus", reason="not_found") == 1
    assert value(after, "mien_calls_total", method="Rounds/Upload") == 4
    for stage in ("selecting", "training", "upload", "closing"):
        assert value(after, "mien_stage_seconds_count", stage=stage) == 1
    assert value(after, "mien_tasks", state="done") == 1
    assert value(after, "mien_store_seconds_count") > value(before, "mien_store_seconds_count")
    assert value(after, "mien_draining") == 0
    assert value(after, "process_resident_memory_bytes") > 1e7


def test_the_dashboard_says_how_many_phones_a_round_waits_for(fleet: FakeFleet) -> None:
    """As `task list` does: the count is the coordinator's, who is wanted and since when is in the database."""

    async def story() -> str:
        async with fleet.operator() as operator, fleet.devices("few", 2) as devices:
            await fleet.release_tiny_model(operator)
            await operator.submit(tiny_task("few", "few", cohort=CohortSpec(size=7, min_reports=7)), token="few")
            asking = [asyncio.create_task(device.assignment()) for device in devices]
            while (told := await asyncio.to_thread(shown)).find("gathering: 2 of ") < 0:
                await asyncio.sleep(0.1)
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            (task,) = [each for each in await operator.tasks() if each.name == "few"]
            await operator.cancel(task.task_id)
            assert task.gathering_wanted
            assert f"gathering: 2 of {task.gathering_wanted}" in told
            return told

    def shown() -> str:
        resolved = fleet.home.resolve()
        with contextlib.closing(Reader.open(fleet.home.database_url(resolved.config))) as reader:
            situation = Surveyor(fleet.home, resolved.config, reader, None, Clock()).survey(ChainState())
            page = reader.ask(lambda db: overview(db, situation, fleets.read(db, situation.now_ms)))
        (table,) = [each for each in page.sections if each.anchor == "running"]
        assert isinstance(table, Table)
        return "; ".join(row[2].note for row in table.rows if row[0].text == "few")

    assert run(story()).startswith("round 1, attempt 1; gathering: 2 of ")


def test_one_device_cannot_hold_the_calls_of_others(fleet: FakeFleet) -> None:
    """It asks sixteen times at once, which are held; four more by another connection are refused, and others served."""

    async def story() -> list[MienError]:
        async with fleet.devices("greedy", 1) as (device,), fleet.devices("greedy", 1) as (other,):
            held = [asyncio.create_task(raised(device.check_in())) for _ in range(16)]
            await until_held(fleet, 16)
            apart = (("grpc.use_local_subchannel_pool", 1),)
            async with FakeDevice(fleet.address, device.credentials, options=apart) as again:
                refused = [await raised(again.check_in()) for _ in range(4)]
            await other.hello()
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            return refused

    refused = run(story())
    assert [type(error) for error in refused] == [RateLimitedError] * 4
    assert all(error.retry_after_s for error in refused)
    assert value(scrape(fleet), "mien_refused_calls_total", method="Rounds/CheckIn", reason="rate_limited") == 4


def test_health_and_readiness(fleet: FakeFleet) -> None:
    assert get(fleet, "/healthz") == (200, "alive\n")
    status, body = get(fleet, "/readyz")
    assert (status, json.loads(body)) == (
        200,
        {"ready": True, "checks": {"database": "good", "revocations": "good", "draining": "good"}},
    )
    assert get(fleet, "/secrets")[0] == 404
    assert monitoring(fleet).detail.startswith("ready")


def test_every_metric_is_documented(fleet: FakeFleet) -> None:
    page = (ROOT / "docs/operator/production.md").read_text(encoding="utf-8").partition("### Metrics and health")[2]
    documented = set(re.findall(r"^\| `(mien_\w+)", page, re.MULTILINE))
    families = text_string_to_metric_families(get(fleet, "/metrics")[1])
    exposed = {family.name for family in families if family.name.startswith("mien_")}
    assert {name.removesuffix("_total") for name in documented} == exposed


def test_no_metric_names_a_device(fleet: FakeFleet) -> None:
    assert not re.search(r"[0-9a-f]{32}", get(fleet, "/metrics")[1])


def test_without_a_registrar_that_answers_a_coordinator_is_not_ready(tmp_path: Path) -> None:
    registrar = f"127.0.0.1:{free_port()}"
    fleet = FakeFleet(tmp_path, metrics_port=free_port(), registrar_address=registrar)
    try:
        fleet.start()
        status, body = get(fleet, "/readyz")
        assert status == 503
        assert "no recent revocation list" in json.loads(body)["checks"]["revocations"]
        assert get(fleet, "/healthz")[0] == 200
        found = monitoring(fleet)
        assert isinstance(found.error, UnreachableError)
        assert "revocations: the coordinator has no recent revocation list" in found.detail
        assert value(scrape(fleet), "mien_revocation_list_age_seconds") == float("inf")
    finally:
        fleet.close()
