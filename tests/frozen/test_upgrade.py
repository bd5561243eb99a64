"""The upgrade that docs/operator/production.md describes, from the folders and with the program of commit 403b2b4.

Both servers' folders of then are served by today's programs and close a round; a folder that was upgraded is refused by
the program of then, which takes the backup that was made before.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from coordinator.home.config import SETTINGS
from coordinator.home.home import CoordinatorHome
from coordinator.registrar.config import SETTINGS as REGISTRAR_SETTINGS
from coordinator.registrar.home import RegistrarHome
from coordinator.store.store import SCHEMA
from coordinator.store.tables import LOG_HEAD
from mien.errors import TABLE, VersionError
from simulation.testing import FakeFleet, contribution, free_port
from tests.frozen.make import PASSWORD
from tests.frozen.test_homes import SMALL
from tests.helpers import ROOT, run
from tests.programs import call
from tests.programs import run as answer_of

HERE = Path(__file__).resolve().parent
THEN = "403b2b4"
SCHEMA_OF_THEN, PHONES = "0014", 16

pytestmark = pytest.mark.slow


class FleetOfThen(FakeFleet):
    """A coordinator's and a registrar's folder as they were left then, at addresses that are free now."""

    def __init__(self, folder: Path) -> None:
        with tarfile.open(HERE / "homes.tar.xz") as tar:
            members = [each for each in tar if each.name.split("/")[0] in ("small-coordinator", "registrar")]
            tar.extractall(folder, members, filter="data")
        for path in folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        self.port, joins, admins = free_port(), free_port(), free_port()
        self.address, self.now = f"127.0.0.1:{self.port}", datetime.now(UTC)
        self.home, self.registrar_home = (
            CoordinatorHome(folder / "small-coordinator"),
            RegistrarHome(folder / "registrar"),
        )
        here = {"address": self.address, "listen": self.address, "registrar_address": f"127.0.0.1:{joins}"}
        config = dataclasses.replace(
            self.home.resolve().config, **here, registrar_admin_address=f"127.0.0.1:{admins}", retry_after_s=0.2
        )
        SETTINGS.write(self.home.config_path, config)
        changed = dataclasses.replace(
            self.registrar_home.resolve().config,
            address=f"127.0.0.1:{joins}", listen=f"127.0.0.1:{joins}", admin_address=f"127.0.0.1:{admins}",
            admin_listen=f"127.0.0.1:{admins}", coordinator_address=self.address,
        )  # fmt: skip
        REGISTRAR_SETTINGS.write(self.registrar_home.config_path, changed)
        self.registrar_home.trust(self.home.public(self.home.ca_path), replace=True)
        self.registrar = self.registrar_home.authority()
        self.log, self.ready_file = folder / "coordinator.log", folder / "ready.json"
        self._process = None
        self._registrar_log = folder / "registrar.log"
        self._registrar_process: subprocess.Popen[bytes] | None = None

    def start_registrar(self) -> None:
        """Start the registrar; the coordinator waits for it by itself."""
        with self._registrar_log.open("ab") as log:
            self._registrar_process = subprocess.Popen(
                [sys.executable, "-m", "coordinator.commands.registrar_cli", "serve", "--json", "--home",
                 str(self.registrar_home.folder)],
                stdout=log, stderr=log,
            )  # fmt: skip

    def close(self) -> None:
        """Leave no process behind."""
        super().close()
        if self._registrar_process is not None:
            self._registrar_process.kill()
            self._registrar_process.wait()


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """A file with the password of the backups."""
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    return file


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetOfThen]:
    fleet = FleetOfThen(tmp_path / "homes")
    try:
        yield fleet
    finally:
        fleet.close()


def test_both_servers_of_then_go_on_with_todays_programs(fleet: FleetOfThen) -> None:
    """The coordinator first, as the guide says, then the registrar; its task goes on, and its log is cosigned."""
    call("mien-coordinator", "operator", "renew", "--home", fleet.home.folder)  # those of then last a year

    async def story() -> None:
        fleet.start()
        fleet.start_registrar()
        async with fleet.operator() as operator, fleet.devices("default", PHONES) as devices:
            (task,) = await operator.tasks()
            assert (task.task_id, task.state, task.rounds_closed) == (SMALL["task"]["task_id"], "paused", 0)
            assert [model.model_id for model in await operator.models()] == [SMALL["model_id"]]
            await operator.resume(task.task_id)
            await asyncio.gather(*(each.take_part(lambda spec, _: contribution(spec, 1)) for each in devices))
            while (await operator.tasks())[0].rounds_closed < 1:
                await asyncio.sleep(0.1)
            (after,) = await operator.tasks()
            assert after.model_id != task.model_id
            await operator.pause(task.task_id)
            assert np.isfinite(fleet.theta(after.model_id)).all()

    def cosigned() -> tuple[int, int]:
        with fleet.store() as store:
            row = store.privacy(lambda db: db.execute(LOG_HEAD.select()).one())
        return row.size, row.cosigned_size

    async def until_cosigned() -> None:
        while (sizes := await asyncio.to_thread(cosigned))[0] != sizes[1] or not sizes[0]:
            await asyncio.sleep(0.1)

    run(story(), limit_s=240)
    run(until_cosigned(), limit_s=120)
    assert fleet.stop() == 0
    told = answer_of("mien-coordinator", "audit", "verify", "--anchor", SMALL["backup"]["audit_head"],
                     "--home", fleet.home.folder)  # fmt: skip
    assert told.told["verifies"] is True


@pytest.fixture(scope="module")
def program_of_then(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of then, out of the repository's history; a copy without history has no such program."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    packed = subprocess.run(
        ["git", "archive", THEN, "mien", "coordinator", "pyproject.toml"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode != 0:
        pytest.skip(f"this checkout does not have commit {THEN}: {packed.stderr.decode()[:100]}")
    folder = tmp_path_factory.mktemp("then")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_the_way_back_is_the_backup_and_the_program_of_then(
    fleet: FleetOfThen, program_of_then: Path, tmp_path: Path, password: Path
) -> None:
    (entry, function) = tomllib.loads((program_of_then / "pyproject.toml").read_text())["project"]["scripts"][
        "mien-coordinator"
    ].split(":")

    def then(*arguments: object) -> subprocess.CompletedProcess[str]:
        code = f"import sys; from {entry} import {function}; sys.argv[0] = 'mien-coordinator'; {function}()"
        environment = {**os.environ, "PYTHONPATH": str(program_of_then)}
        return subprocess.run(
            [sys.executable, "-P", "-c", code, *map(str, arguments), "--json"], cwd=program_of_then, env=environment,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    call("mien-coordinator", "audit", "head", "--home", fleet.home.folder)  # whatever opens the database upgrades it
    upgraded = then("audit", "head", "--home", fleet.home.folder)
    assert upgraded.returncode == TABLE[VersionError].exit_code, upgraded.stderr
    assert f"written by a newer program (schema {SCHEMA}, this program knows {SCHEMA_OF_THEN})" in upgraded.stderr
    back = then("restore", HERE / "coordinator.mien", "--password-file", password, "--home", tmp_path / "back")
    assert back.returncode == 0, back.stderr
    head = then("audit", "head", "--home", tmp_path / "back")
    assert head.returncode == 0, head.stderr
    position = int(json.loads(head.stdout.splitlines()[-1])["anchor"].partition(":")[0])
    assert position == int(SMALL["backup"]["audit_head"].partition(":")[0]) + 1  # and the entry of the restoring
