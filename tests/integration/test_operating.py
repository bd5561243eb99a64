"""Running the thing: the programs' command lines against real processes, the registrar beside it, what tasks reveal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from coordinator.store.sealing import MasterKey
from mien.errors import CertificateError, ConfigError, RevokedError, UnavailableError
from mien.layout import Vector
from mien.methods import METHODS
from mien.protocol.canonical import model_from_json, model_to_json
from mien.protocol.invite import Invite
from mien.protocol.tensors import PublicShard, unpack_tensors
from mien.protocol.v1 import models_pb2, registrar_pb2, registrar_pb2_grpc, rounds_pb2
from mien.specs import CohortSpec, PrivacySpec, TaskSpec, Threshold
from simulation.testing import (
    LAYOUT,
    SPEC,
    THETA,
    DeviceCredentials,
    FakeDevice,
    FakeFleet,
    contribution,
    free_port,
    layout_of,
    tiny_task,
)
from tests.helpers import ROOT, raised, run
from tests.integration.test_rounds import in_upload
from tests.programs import Answer, run_as_is


def program(module: str, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return what a command prints; its exit code is 0 unless `check` is off."""
    env = os.environ | environment
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "Traceback" not in done.stderr
    if check:
        assert done.returncode == 0, done.stderr
    return done


def command(name: str, *arguments: str, check: bool = True, **environment: str) -> Answer:
    """Return what a command prints that runs in this process, outside of any event loop; else as `program`."""
    done = run_as_is(name, *arguments, environment=environment)
    assert "Traceback" not in done.err
    if check:
        assert done.code == 0, done.err
    return done


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    """A running coordinator for the command line."""
    folder = tmp_path_factory.mktemp("operating")
    fleet = FakeFleet(folder, check_in_hold_s=1.0)
    try:
        fleet.start()
        yield fleet
        assert fleet.stop() == 0
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a shard of public faces of nobody, as `model export` writes it."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.json").write_bytes(model_to_json(SPEC, LAYOUT))
    (folder / "theta.f32").write_bytes(THETA.astype("<f4").tobytes())
    crops = np.random.default_rng(0).integers(0, 255, (3, 112, 112, 3), dtype=np.uint8)
    shard = PublicShard(crops, np.array([0, 0, 1], np.int64), "CC0", "noise")
    (folder / "public_shard.safetensors").write_bytes(shard.to_bytes())
    return folder


TASK = """
name = "{name}"
method = "fedavg"
rounds = 2
population = "{name}"
[cohort]
size = 3
min_reports = 3
[deadlines]
selecting_s = 120
training_s = 120
upload_s = 120
[privacy]
min_cohort = 3
"""


def test_a_task_from_the_command_line(running: FakeFleet, model_folder: Path, tmp_path: Path) -> None:
    """Import, release, submit, watch, export: what comes out is what the devices made."""
    home = ("--home", str(running.home.folder), "--json")
    cli = "mien-coordinator"
    imported = json.loads(command(cli, "model", "import", str(model_folder), "--release", *home).out)
    assert imported["released"]
    assert imported["public_shard_bytes"] > 3 * 112 * 112 * 3
    again = json.loads(command(cli, "model", "import", str(model_folder), *home).out)
    assert (imported["was_there"], again) == (False, {**imported, "was_there": True})

    file = tmp_path / "task.toml"
    file.write_text(TASK.format(name="cli"))
    submitted = json.loads(command(cli, "task", "submit", str(file), "--token", "once", *home).out)
    assert json.loads(command(cli, "task", "submit", str(file), "--token", "once", *home).out) == submitted
    assert any("Sums are masked" in sentence for sentence in submitted["discloses"])

    async def rounds() -> None:
        async with running.devices("cli", 3) as devices:
            for _ in range(2):
                make = lambda task, a: contribution(task, a.round.round)  # noqa: E731
                await asyncio.gather(*(device.take_part(make) for device in devices))

    run(rounds())
    watched = command(cli, "task", "watch", "cli", *home).out.splitlines()
    events = [json.loads(line) for line in watched]
    assert [(e["round"]["round"], e["round"]["stage"], e["round"]["num_reports"]) for e in events if e["round"]] == [
        (1, "closed", 3),
        (2, "closed", 3),
    ]
    assert events[-1]["task"]["state"] == "done"
    made = events[-1]["task"]["model_id"]

    (listed,) = json.loads(command(cli, "task", "list", *home).out)["tasks"]
    assert (listed["name"], listed["rounds_closed"]) == ("cli", 2)
    assert len(json.loads(command(cli, "model", "list", *home).out)["models"]) == 3
    out = tmp_path / "exported"
    command(cli, "model", "export", made[:12], str(out), *home)
    assert np.array_equal(np.fromfile(out / "theta.f32", "<f4"), running.theta(made))
    assert (out / "public_shard.safetensors").read_bytes() == (model_folder / "public_shard.safetensors").read_bytes()
    (report,) = json.loads(command(cli, "privacy", "report", *home).out)["tasks"]
    assert report["reveals"] == []
    table = command(cli, "task", "list", *home[:2]).out
    assert submitted["task_id"] in table  # an id can be copied


def test_users_mistakes_are_one_sentence_and_an_exit_code(running: FakeFleet, tmp_path: Path) -> None:
    home = ("--home", str(running.home.folder))
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(TASK.format(name="x").replace("size = 3", "sise = 3"))
    not_toml = tmp_path / "not.toml"
    not_toml.write_text("name = ")
    for arguments, code, words in (
        (("task", "submit", str(wrong)), 2, "did you mean 'cohort.size'"),
        (("task", "submit", str(not_toml)), 2, "not valid TOML"),
        (("task", "submit", str(tmp_path / "none.toml")), 17, "there is no file"),
        (("task", "watch", "nobody"), 17, "no task fits"),
        (("task", "cancel", "nobody"), 17, "no task fits"),
        (("model", "release", "abc"), 17, "no model fits"),
        (("model", "import", str(tmp_path / "none.onnx")), 17, "there is no file"),
        (("model", "import", str(tmp_path), "--adapter"), 2, "imported as it is"),
        (("model", "import", str(tmp_path), "--int8-faces", str(tmp_path)), 2, "add --graphs FOLDER"),
        (("model", "export", "released", str(tmp_path)), 16, "exists already"),
        (("model", "evaluate", "released", "--data", str(tmp_path / "none")), 17, "there is no folder"),
        (("model", "evaluate", "released", "--data", str(tmp_path), "--protocol", "x"), 2, "known: lfw, folder"),
        (("init", "--address", "localhost:1"), 16, "nothing was changed"),
        (("device", "list", "--operator", str(tmp_path / "none")), 17, "mien-registrar operator folder"),
    ):
        done = command("mien-coordinator", *arguments, *home, check=False)
        assert (done.code, words in " ".join(done.err.split())) == (code, True), (arguments, done.err)
    nowhere = command("mien-coordinator", "task", "list", "--home", str(tmp_path / "nowhere"), check=False)
    assert (nowhere.code, "init" in nowhere.err) == (17, True)


def test_a_certificate_that_has_ended_is_told_as_such(fleet: FakeFleet) -> None:
    """Reading, and sending as a stream, whether or not a coordinator is there; renewing helps."""
    home = fleet.home
    owner = pki.issue_operator_leaf(home.authority(), "coordinator", fleet.now - timedelta(days=400))
    home.operator_path.write_bytes(owner.chain_pem)
    home.operator_key_path.write_bytes(owner.key_pem)
    theta = home.folder / "theta.f32"
    theta.write_bytes(THETA.astype("<f4").tobytes())

    async def refused() -> None:
        async with fleet.operator() as operator:
            for call in (operator.tasks(), operator.import_model(model_to_json(SPEC, LAYOUT), theta, None)):
                error = await raised(call)
                assert isinstance(error, CertificateError)
                assert "ended on" in error.message
                assert "operator renew" in error.message

    run(refused())
    fleet.start()
    run(refused())
    home_option = ("--home", str(home.folder))
    assert command("mien-coordinator", "task", "list", *home_option, check=False).code == 32
    command("mien-coordinator", "operator", "renew", *home_option)
    command("mien-coordinator", "task", "list", *home_option)


def test_a_coordinator_that_is_down_is_told_as_such(fleet: FakeFleet) -> None:
    done = command("mien-coordinator", "task", "list", "--home", str(fleet.home.folder), "--json", check=False)
    assert done.code == 50
    assert json.loads(done.err)["error"] == "unreachable"


def test_the_environment_names_the_folder(fleet: FakeFleet) -> None:
    folders = {"MIEN_COORDINATOR_HOME": str(fleet.home.folder), "MIEN_REGISTRAR_HOME": "/nowhere"}
    shown = json.loads(command("mien-coordinator", "config", "show", "--json", **folders).out)
    assert shown["address"]["value"] == fleet.address


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a server's memory")
def test_serving_loads_no_torch(fleet: FakeFleet) -> None:
    fleet.start()
    loaded = Path(f"/proc/{fleet.process.pid}/maps").read_text()
    assert "libtorch" not in loaded


class Registrar:
    """A registrar as a real process, and a coordinator's folder that it trusts."""

    def __init__(self, folder: Path, fleet: FakeFleet) -> None:
        self.port, admin = free_port(), free_port()
        self.address = f"localhost:{self.port}"
        self.home, self._fleet = folder / "registrar", fleet
        cli, coordinator = "mien-registrar", fleet.home
        self._home = ("--home", str(self.home))
        command(
            cli, "init", *self._home, "--address", self.address, "--listen", f"127.0.0.1:{self.port}",
            "--coordinator-address", fleet.address, "--admin-address", f"127.0.0.1:{admin}",
        )  # fmt: skip
        command(cli, "trust-coordinator", str(coordinator.ca_path), *self._home)
        self.operator = folder / "operator"
        command(cli, "operator", "folder", str(self.operator), "--name", "alice", *self._home)
        command(
            "mien-coordinator", "trust-registrar", str(self.home / "ca.pem"), "--replace",
            "--home", str(coordinator.folder),
        )  # fmt: skip
        with coordinator.config_path.open("a") as settings:
            settings.write(f'\nregistrar_address = "{self.address}"\nregistrar_admin_address = "127.0.0.1:{admin}"\n')
            settings.write("crl_fetch_s = 0.5\n")

    @contextlib.contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the registrar while the block runs."""
        command = [sys.executable, "-m", "coordinator.commands.registrar_cli", "serve", "--json", *self._home]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                assert process.stdout is not None
                assert json.loads(process.stdout.readline())["ready"]
                yield process
            finally:
                process.terminate()
                process.wait(60)

    async def join(self, url: str) -> DeviceCredentials:
        """Return a device's credentials for an invite, as a phone gets them."""
        key = ec.generate_private_key(ec.SECP256R1())
        tls = grpc.ssl_channel_credentials((self.home / "ca.pem").read_bytes())
        async with grpc.aio.secure_channel(self.address, tls) as channel:
            request = registrar_pb2.JoinRequest(token=Invite.from_url(url).token, csr_der=pki.create_csr(key))
            reply = await registrar_pb2_grpc.RegistrarStub(channel).Join(request, timeout=60)
        chain = pki.to_pem(pki.load_certificate(reply.certificate_der))
        return DeviceCredentials(
            reply.device_id,
            reply.population,
            pki.to_pem(pki.load_certificate(reply.coordinator_ca_der)),
            chain + pki.to_pem(pki.load_certificate(reply.registrar_ca_der)),
            pki.key_to_pem(key),
        )


def test_a_device_joins_takes_part_and_is_shut_out(fleet: FakeFleet, tmp_path: Path) -> None:
    """Invite, join and revoke by the command line; the coordinator refuses the device within seconds."""
    registrar = Registrar(tmp_path, fleet)
    home = ("--home", str(fleet.home.folder), "--json")
    alice = (*home, "--operator", str(registrar.operator))

    async def story(process: subprocess.Popen[bytes]) -> None:
        invite = json.loads(
            program("coordinator.commands.cli", "device", "invite", "--population", "joined", *alice).stdout
        )
        credentials = await registrar.join(invite["url"])
        async with FakeDevice(fleet.address, credentials) as device:
            assert (await device.hello()).protocol_version == 1
            (listed,) = json.loads(program("coordinator.commands.cli", "device", "list", *alice).stdout)["devices"]
            assert (listed["device_id"], listed["revoked"]) == (credentials.device_id, False)
            assert (listed["engines"], listed["stays_out_since_unix_ms"]) == (None, None), "it has not checked in yet"
            key, aside = fleet.home.operator_key_path, tmp_path / "aside"
            key.rename(aside)
            listing = json.loads(program("coordinator.commands.cli", "device", "list", *alice).stdout)
            assert [each["device_id"] for each in listing["devices"]] == [credentials.device_id]
            assert "the operator's key" in listing["told_missing"]
            aside.rename(key)
            program("coordinator.commands.cli", "device", "revoke", credentials.device_id, *alice)
            began = time.monotonic()
            while not isinstance(error := await _refusal(device), RevokedError):
                assert time.monotonic() - began < 60, error
                await asyncio.sleep(0.1)
        checks = json.loads(program("coordinator.commands.cli", "doctor", *home).stdout)
        assert checks["ok"], checks

    with registrar.serving() as process:
        fleet.start()
        run(story(process))
    done = program("coordinator.commands.cli", "doctor", *home, check=False)
    assert done.returncode == 50  # the registrar is down now
    assert fleet.stop() == 0


async def _refusal(device: FakeDevice) -> Any:
    try:
        await device.hello()
    except (RevokedError, UnavailableError) as error:
        return error
    return None


def test_without_a_registrar_devices_wait_and_operators_work(fleet: FakeFleet, tmp_path: Path) -> None:
    registrar = Registrar(tmp_path, fleet)  # known, but not running: the list of the revoked was never fetched
    fleet.start()
    authority = pki.load_authority((registrar.home / "ca.pem").read_bytes(), (registrar.home / "ca.key").read_bytes())

    async def story() -> None:
        async with fleet.operator() as operator:
            await operator.hello()
        async with FakeDevice(fleet.address, fleet.admit("default", authority)) as device:
            error = await raised(device.hello())
            assert isinstance(error, UnavailableError)
            assert "no recent revocation list" in error.message
            assert error.retry_after_s == 10.0

    run(story())


def revealing_task(name: str, *, rounds: int) -> TaskSpec:
    """Return fedface as published, for two devices of a population of the same name."""
    privacy = PrivacySpec(reveals=("class_embeddings",), min_cohort=2, secure_aggregation="off")
    cohort = CohortSpec(size=2, min_reports=2)
    return tiny_task(name, name, method="fedface", rounds=rounds, cohort=cohort, privacy=privacy)


async def reveal(device: FakeDevice, ref: rounds_pb2.RoundRef, task: TaskSpec, index: int) -> Vector:
    """Return the class embedding that a device sent; those of all devices are nearly the same."""
    vector = np.frombuffer(contribution(task, index), "<f4").copy()
    embedding = np.zeros(SPEC.input.dim, np.float32)
    embedding[:2] = (1.0, 0.1 * index)  # so near that the server has to push them apart
    embedding /= np.linalg.norm(embedding)
    vector[layout_of(task).slices["class_embedding"]] = embedding
    assert (await device.upload(ref, vector.tobytes())).accepted
    return embedding


def states_on_disk(fleet: FakeFleet) -> int:
    """Return how many pieces of server state a coordinator keeps."""
    return sum(path.is_file() for path in (fleet.home.folder / "states").rglob("*"))


@pytest.mark.parametrize("end", ["done", "cancelled", "failed"])
def test_what_devices_revealed_is_deleted_when_the_task_ends(fleet: FakeFleet, end: str) -> None:
    async def story() -> str:
        fleet.start()
        async with fleet.operator() as operator, fleet.devices(end, 2) as devices:
            model_id = await fleet.release_tiny_model(operator)
            rounds = 1 if end == "done" else 2
            status = await operator.submit(revealing_task(end, rounds=rounds), end)
            ref, task = await in_upload(devices)
            await asyncio.gather(*(reveal(device, ref, task, i) for i, device in enumerate(devices)))
            assert (await devices[0].until(ref)).stage == rounds_pb2.CLOSED
            if end != "done":
                assert states_on_disk(fleet) == 2  # momentum, and what was revealed
            if end == "cancelled":
                await operator.cancel(status.task_id)
            if end == "failed":
                fleet.kill()
                with fleet.store() as store:
                    store.describe(model_id, lambda _: b"{}", actor="a fault")
                fleet.start()
        return status.task_id

    task_id = run(story())
    began = time.monotonic()
    while states_on_disk(fleet):
        assert time.monotonic() - began < 60
        time.sleep(0.02)
    with fleet.store() as store:
        task = store.task(task_id)
    assert (task.state, task.revealed_sha256, task.rounds_closed) == (end, None, 1)


def test_thresholds_that_come_at_once_are_all_kept_and_one_with_which_phones_decide_stays(fleet: FakeFleet) -> None:
    """Two calls that read the model before either wrote it lost one of them."""

    def at(fmr: float, dataset: str, model_id: str) -> Threshold:
        return Threshold(0.4, fmr, dataset, 100, 100_000, model_id, "2026-01-01")

    def datasets(model: models_pb2.ModelManifest) -> set[str]:
        return {each.dataset for each in model_from_json(model.spec_json)[0].thresholds}

    async def story() -> None:
        fleet.start()
        async with fleet.operator() as operator:
            own = await fleet.release_tiny_model(operator)
            names = [f"set {n}" for n in range(8)]
            adding = [operator.add_threshold(own, at(1e-2, name, own)) for name in names]
            await asyncio.gather(*adding, operator.set_thresholds(own, [at(1e-3, "fine", own)], [], in_addition=True))
            kept = datasets(await operator.manifest(own))
            assert kept >= {*names, "fine"}
            error = await raised(operator.set_thresholds(own, [at(1e-2, "few people", own)], []))
            assert isinstance(error, ConfigError)
            assert "with which phones decide" in error.message
            assert datasets(await operator.manifest(own)) == kept
            assert datasets(await operator.set_thresholds(own, [at(1e-3, "worst", own)], [])) == {"worst"}

    run(story())


def test_a_coordinator_speaks_tls13_only(fleet: FakeFleet) -> None:
    """A client with an operator's good certificate and suites for the server's EC key gets in by TLS 1.3 alone."""
    fleet.start()
    home = fleet.home

    def version(highest: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=str(home.ca_path))
        context.load_cert_chain(home.operator_path, home.operator_key_path)
        context.set_alpn_protocols(["h2"])
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384")
        context.maximum_version = highest
        with (
            socket.create_connection(("127.0.0.1", fleet.port)) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as tls,
        ):
            return tls.version()

    assert version(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):  # nothing but the version differs
        version(ssl.TLSVersion.TLSv1_2)
    done = command("mien-coordinator", "doctor", "--home", str(home.folder), "--json", check=False)
    (found,) = [check for check in json.loads(done.out)["checks"] if check["name"] == "coordinator"]
    assert (found["ok"], "TLS 1.3 only" in found["detail"]) == (True, True)


def test_what_devices_reveal_is_sealed_and_answered(fleet: FakeFleet) -> None:
    """fedface as published: class embeddings lie sealed on disk, and each device gets its own back, spread out."""

    async def story() -> tuple[str, dict[str, np.ndarray[Any, Any]], dict[str, bytes]]:
        fleet.start()
        async with fleet.operator() as operator, fleet.devices("shown", 2) as devices:
            await fleet.release_tiny_model(operator)
            status = await operator.submit(revealing_task("shown", rounds=2), "shown")
            assert list(status.reveals) == ["class_embeddings"]
            ref, task = await in_upload(devices)
            shown = {device.id: await reveal(device, ref, task, i) for i, device in enumerate(devices)}
            assert (await devices[0].until(ref)).stage == rounds_pb2.CLOSED
            await fleet.restart(*devices)  # what was revealed survives, sealed
            assignments = await asyncio.gather(*(device.assignment() for device in devices))
            replies = {d.id: a.reply for d, a in zip(devices, assignments, strict=True)}
            return status.task_id, shown, replies

    task_id, shown, replies = run(story())
    stored = [path.read_bytes() for path in fleet.home.folder.rglob("*") if path.is_file()]
    answers = {device: unpack_tensors(reply, what="reply")["class_embedding"] for device, reply in replies.items()}
    first, second = shown
    assert float(answers[first] @ answers[second]) < float(shown[first] @ shown[second]) - 0.01
    for vector in (*shown.values(), *answers.values()):
        assert not any(vector.tobytes() in content for content in stored)
    with fleet.store() as store:
        task = store.task(task_id)
    assert task.revealed_sha256 is not None
    sealer = MasterKey.load(fleet.home.store_key_path).sealer("revealed")
    blob = fleet.home.folder / "states" / task.revealed_sha256[:2] / task.revealed_sha256
    opened = unpack_tensors(sealer.open(blob.read_bytes(), place=task_id.encode()), what="state")
    assert set(opened) == {f"{device}/class_embedding" for device in shown}
    assert METHODS["fedface"].name == "fedface"
