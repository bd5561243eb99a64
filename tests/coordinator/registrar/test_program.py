"""mien-registrar as people run it: commands, exit codes, files, signals, a kill at a bad moment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from coordinator.commands import registrar_cli
from coordinator.keys import pki
from mien.errors import TABLE, AlreadyExistsError, ConfigError, MienError, NotFoundError, UnreachableError
from mien.protocol.invite import Invite
from mien.protocol.v1 import registrar_pb2, registrar_pb2_grpc
from mien.shell.ready import is_live
from simulation.testing import free_port
from tests.coordinator.registrar.running import csr_der

ROOT = Path(__file__).resolve().parents[3]
COORDINATOR = pki.create_authority("coordinator", datetime.now(UTC))


@dataclass
class Program:
    """A registrar's folder and how to run commands on it."""

    home: Path
    capture: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command line in this process; return exit code, output and error output."""
        old = sys.argv
        sys.argv = ["mien-registrar", *arguments]
        if "--help" not in arguments:
            sys.argv += ["--home", str(self.home)]
        self.capture.readouterr()
        try:
            with pytest.raises(SystemExit) as ended:
                registrar_cli.main()
        finally:
            sys.argv = old
        out, err = self.capture.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, out, err

    def json(self, *arguments: str) -> Any:
        """Return what a command that succeeds prints for machines."""
        code, out, err = self.run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def refused(self, *arguments: str) -> tuple[type[MienError], str]:
        """Return the error that ends a command and its one sentence."""
        code, out, err = self.run(*arguments, "--json")
        assert out == ""
        told = json.loads(err)
        (kind,) = [cls for cls, row in TABLE.items() if cls.code == told["error"]]
        assert code == TABLE[kind].exit_code
        return kind, told["message"]

    def serve_refused(self) -> tuple[type[MienError], str]:
        """Return the error that ends `serve`, which sets up logging and so gets a process of its own."""
        done = subprocess.run(self._serve, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200)
        told = json.loads(done.stderr.splitlines()[-1])
        (kind,) = [cls for cls, row in TABLE.items() if cls.code == told["error"]]
        assert done.returncode == TABLE[kind].exit_code
        return kind, told["message"]

    @property
    def _serve(self) -> list[str]:
        return [sys.executable, "-m", "coordinator.commands.registrar_cli", "serve", "--home", str(self.home), "--json"]

    @contextlib.contextmanager
    def serving(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Run `serve` as a process of its own; it is killed at the end if it still runs."""
        with subprocess.Popen(
            [*self._serve, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, process.stderr.read() if process.stderr else ""
                assert json.loads(line)["ready"] is True
                yield process
            finally:
                process.kill()


@pytest.fixture
def program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Program:
    """A registrar that is set up, trusts a coordinator and does not run."""
    made = Program(tmp_path / "R", capsys)
    join, admin = free_port(), free_port()
    made.json(
        "init",
        f"--address=127.0.0.1:{join}",
        "--coordinator-address=127.0.0.1:7443",
        f"--admin-address=127.0.0.1:{admin}",
        f"--listen=127.0.0.1:{join}",
    )
    (tmp_path / "C-ca.pem").write_bytes(COORDINATOR.certificate_pem)
    made.json("trust-coordinator", str(tmp_path / "C-ca.pem"))
    return made


def join(program: Program, invite: Invite, key: ec.EllipticCurvePrivateKey) -> registrar_pb2.JoinReply:
    tls = grpc.ssl_channel_credentials((program.home / "ca.pem").read_bytes())
    with grpc.secure_channel(invite.registrar_address, tls) as channel:
        request = registrar_pb2.JoinRequest(token=invite.token, csr_der=csr_der(key))
        return registrar_pb2_grpc.RegistrarStub(channel).Join(request, timeout=60, wait_for_ready=True)


def test_an_operators_day(program: Program) -> None:
    """Invite, join, list, revoke, doctor on one running registrar; then a stop without complaint."""
    with program.serving() as process:
        made = program.json("invite", "--note", "Alice's phone", "--valid-hours", "2")
        invite = Invite.from_url(made["url"])
        assert abs(made["expires_unix_s"] - time.time() - 7200) < 120
        assert invite.coordinator_ca_sha256 == pki.fingerprint(COORDINATOR.certificate)

        key = ec.generate_private_key(ec.SECP256R1())
        device_id = join(program, invite, key).device_id
        (device,) = program.json("list")["devices"]
        assert (device["device_id"], device["note"], device["revoked"]) == (device_id, "Alice's phone", False)

        told = program.json("revoke", device_id[:6], "--reason", "lost")
        assert told == {"device_id": device_id, "revoked": True}
        (device,) = program.json("list")["devices"]
        assert device["revoked"] is True
        assert program.refused("revoke", "0" * 32)[0] is NotFoundError
        code, out, _ = program.run("list")
        assert code == 0
        assert "revoked" in out

        checks = program.json("doctor")
        assert checks["ok"] is True
        assert len(checks["checks"]) == 10

        code, out, _ = program.run("invite")
        assert code == 0
        assert "█" in out
        assert "mien://join?" in out
        assert f"coordinator  {' '.join(re.findall('....', pki.fingerprint(COORDINATOR.certificate)))}\n" in out
        assert made["code"] == invite.code()
        assert f"  {invite.code()}\n" in out
        assert made["fingerprints"]["registrar"].replace(" ", "") == invite.registrar_ca_sha256

        assert program.serve_refused()[0] is AlreadyExistsError

        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert invite.token not in log
        assert '"event": "stopped"' in log

    kind, message = program.refused("list")
    assert kind is UnreachableError
    assert "start it with mien-registrar serve" in message
    code, out, _ = program.run("doctor", "--json")
    assert code == TABLE[UnreachableError].exit_code
    assert [c["name"] for c in json.loads(out)["checks"] if not c["ok"]] == ["joining port", "operators' port"]


def test_serve_says_when_it_is_ready_and_listens_where_it_is_told(program: Program, tmp_path: Path) -> None:
    join_port, admin_port = free_port(), free_port()
    ready, own = tmp_path / "ready.json", program.json("config", "show")["address"]["value"]
    options = (f"--listen=127.0.0.1:{join_port}", f"--admin-listen=127.0.0.1:{admin_port}", f"--ready-file={ready}")
    with program.serving(*options) as process:
        told = json.loads(ready.read_text())
        for port in (join_port, admin_port):
            socket.create_connection(("127.0.0.1", port)).close()
        pid = process.pid
        assert is_live(ready)
        process.terminate()
        assert process.wait(60) == 0
    assert not ready.exists()
    del told["started"]
    assert told == {
        "ready": True, "address": own, "join_port": join_port, "admin_port": admin_port, "pid": pid
    }  # fmt: skip


def test_backup_and_restore(program: Program, tmp_path: Path) -> None:
    password, file = tmp_path / "password", tmp_path / "r.mien"
    password.write_text("correct horse\n")
    made = program.json("backup", str(file), f"--password-file={password}")
    other = Program(tmp_path / "S", program.capture)
    back = other.json("restore", str(file), f"--password-file={password}")
    assert (back["files"], back["audit_head"], back["invites_ended"]) == (made["files"], made["audit_head"], 0)
    checks = {check["name"]: check["ok"] for check in json.loads(other.run("doctor", "--json")[1])["checks"]}
    assert all(checks[name] for name in ("folder", "settings", "authority", "operator", "audit log"))
    kind, message = other.refused("restore", str(file), f"--password-file={password}")
    assert kind is AlreadyExistsError
    assert "not empty" in message


def test_only_tls13_is_spoken(program: Program) -> None:
    address = ("127.0.0.1", program.json("config", "show")["address"]["value"].rpartition(":")[2])

    def version(highest: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cadata=(program.home / "ca.pem").read_text())
        context.set_alpn_protocols(["h2"])
        context.maximum_version = highest
        with socket.create_connection(address) as raw, context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
            return tls.version()

    with program.serving():
        assert version(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            version(ssl.TLSVersion.TLSv1_2)


def test_a_join_that_was_answered_survives_a_kill(program: Program) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    with program.serving() as process:
        invite = Invite.from_url(program.json("invite")["url"])
        first = join(program, invite, key)
        process.kill()
        process.wait(60)
    with program.serving():
        assert join(program, invite, key) == first


def test_every_file_of_a_registrar_that_ran_is_private_or_public_on_purpose(program: Program) -> None:
    with program.serving():
        program.json("invite")
        modes = {path.name: path.stat().st_mode & 0o777 for path in program.home.iterdir()}
    public = {"ca.pem", "operators-ca.pem", "operator.pem", "coordinator-ca.pem", "registrar.toml"}
    assert {name for name, mode in modes.items() if mode & 0o077} == public
    assert {"ca.key", "operators-ca.key", "operator.key", "registrar.db"} <= modes.keys()


def test_a_coordinator_becomes_no_operator_and_is_told_what_to_do(program: Program, tmp_path: Path) -> None:
    request, certificate = tmp_path / "operator.csr", tmp_path / "operator.pem"
    request.write_bytes(pki.create_csr(ec.generate_private_key(ec.SECP256R1())))
    code, out, _ = program.run(
        "trust-coordinator", str(tmp_path / "C-ca.pem"), "--csr", str(request), "--out", str(certificate)
    )
    assert (code, "operator folder" in out, certificate.exists()) == (0, True, False)


def test_an_operator_calls_from_a_folder_of_their_own(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "O"
    with program.serving():
        program.json("operator", "folder", str(folder), "--name", "alice")
        assert program.refused("operator", "folder", str(folder), "--name", "bob")[0] is AlreadyExistsError
        assert {path.name for path in folder.iterdir()} == {"ca.pem", "operator.key", "operator.pem", "registrar.toml"}
        assert (folder / "operator.key").stat().st_mode & 0o077 == 0
        alice = Program(folder, program.capture)
        assert alice.json("invite")["url"].startswith("mien://join")
    made = [entry for entry in program.json("audit", "list")["entries"] if entry["action"] == "invite.make"]
    assert [entry["actor"] for entry in made] == ["alice"]
    (tmp_path / "C").mkdir()
    (tmp_path / "C" / "coordinator.toml").touch()
    error, _ = program.refused("operator", "folder", str(tmp_path / "C"), "--name", "bob")
    assert error is ConfigError


def test_an_operators_key_stays_where_it_was_made(program: Program, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    request, certificate = tmp_path / "operator.csr", tmp_path / "operator.pem"
    request.write_bytes(pki.create_csr(key))
    ca = pki.load_authority_certificate((program.home / "operators-ca.pem").read_bytes())
    program.json("operator", "sign", str(request), "--name", "alice", "--out", str(certificate))
    leaf = pki.load_certificate(certificate.read_bytes())
    assert pki.operator_identity(leaf, ca, datetime.now(UTC)).id == "alice"


def test_each_step_of_setting_up_prints_the_whole_next_one(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from coordinator.commands.cli import app as coordinator_app

    address = "--address=registrar.example:7440"
    made = Program(tmp_path / "R2", capsys)
    _, out, _ = made.run("init", address, "--coordinator-address=c.example:7443", "--admin-address=r.example:7441")
    init = next(line.split() for line in out.splitlines() if "mien-coordinator init" in line)
    folder = tmp_path / "C2"
    words = [word.replace("C", str(folder), 1) if word == "C" else word for word in init[1:]]
    assert CliRunner().invoke(coordinator_app, words).exit_code == 0
    settings = (folder / "coordinator.toml").read_text()
    assert all(each in settings for each in ("registrar.example:7440", "r.example:7441", "c.example:7443"))
    trust = next(line.split() for line in out.splitlines() if "mien-registrar trust-coordinator" in line)
    words = [f"{folder}{word[1:]}" if word.startswith("C/") else word for word in trust[1:]]
    code, out, _ = made.run(*[word for word in words if word not in ("--home", str(made.home))])
    assert (code, "mien-registrar serve" in out, (folder / "registrar-operator.key").exists()) == (0, True, False)
    refused = CliRunner().invoke(
        coordinator_app,
        ["init", "--home", str(tmp_path / "C3"), "--address=c.example:1", f"--registrar-ca={made.home / 'ca.pem'}"],
    )
    assert isinstance(refused.exception, ConfigError)
    assert "--registrar-address" in str(refused.exception)
    assert not (tmp_path / "C3").exists()


def test_mistakes_are_one_sentence_and_an_exit_code(program: Program, tmp_path: Path) -> None:
    assert program.refused("init", "--address=a:1", "--coordinator-address=b:2")[0] is AlreadyExistsError
    nowhere = Program(tmp_path / "nowhere", program.capture)
    assert nowhere.serve_refused()[0] is NotFoundError
    assert nowhere.refused("init", "--address=a", "--coordinator-address=b:2")[0] is ConfigError
    assert not nowhere.home.exists()
    code, _, err = nowhere.run("list")
    assert code == TABLE[NotFoundError].exit_code
    assert "error (not_found): there is no registrar in" in err.replace("\n", " ")
    assert "Traceback" not in err


def test_a_taken_port_is_named(program: Program) -> None:
    port = program.json("config", "show")["address"]["value"].rpartition(":")[2]
    with socket.create_server(("127.0.0.1", int(port))):
        kind, message = program.serve_refused()
    assert kind is ConfigError
    assert f"cannot listen on 127.0.0.1:{port}" in message


def test_settings_show_where_they_come_from(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIEN_REGISTRAR_INVITE_VALID_S", "3600")
    shown = program.json("config", "show")
    assert shown["invite_valid_s"] == {"value": 3600, "origin": "MIEN_REGISTRAR_INVITE_VALID_S"}
    assert shown["drain_s"] == {"value": 10, "origin": "default"}
    assert shown["coordinator_address"] == {"value": "127.0.0.1:7443", "origin": "registrar.toml"}


def test_the_environment_names_the_folder(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mien-registrar", "config", "show", "--json"])
    monkeypatch.setenv("MIEN_REGISTRAR_HOME", str(program.home))
    monkeypatch.setenv("MIEN_COORDINATOR_HOME", "/nowhere")
    with pytest.raises(SystemExit) as ended:
        registrar_cli.main()
    assert ended.value.code == 0
    assert json.loads(program.capture.readouterr().out)["coordinator_address"]["value"] == "127.0.0.1:7443"


def test_serving_loads_nothing_heavy() -> None:
    code = (
        "import sys, coordinator.commands.registrar_cli, coordinator.registrar.server; "
        "print(*[m for m in ('torch', 'numpy', 'cv2', 'onnxruntime', 'alembic') if m in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == []


def test_every_command_has_help_with_an_example(program: Program) -> None:
    commands = [[], ["init"], ["serve"], ["invite"], ["revoke"], ["list"], ["trust-coordinator"], ["doctor"]]
    commands += [
        ["audit", "list"],
        ["audit", "head"],
        ["audit", "verify"],
        ["config", "show"],
        ["operator", "sign"],
        ["operator", "renew"],
    ]
    for command in commands:
        code, out, _ = program.run(*command, "--help")
        assert code == 0
        assert "mien-registrar" in out
        assert "Example:" in out or not command


def test_own_operator_credentials_can_be_renewed(program: Program) -> None:
    before = (program.home / "operator.pem").read_bytes()
    shutil.copy(program.home / "operator.pem", program.home / "before.pem")
    program.json("operator", "renew")
    after = (program.home / "operator.pem").read_bytes()
    assert after != before
    ca = pki.load_authority_certificate((program.home / "operators-ca.pem").read_bytes())
    assert pki.operator_identity(pki.load_certificate(after), ca, datetime.now(UTC)).id == "registrar"
    assert (program.home / "operator.key").stat().st_mode & 0o777 == 0o600
