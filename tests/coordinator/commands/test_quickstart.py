"""The folder of a quick start: whole or not at all, and nobody else's."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.commands import cli
from coordinator.commands.common import now
from coordinator.commands.quickstart import QuickFleet, _host_of, _num_open, make_fleet
from coordinator.commands.tasks import read_task
from coordinator.registrar.issuing import token_hash
from coordinator.registrar.store import InviteRecord
from coordinator.release.signing import read_key
from mien.errors import AlreadyExistsError, ConfigError, MienError
from mien.models.bundles import name_of
from mien.protocol.invite import Invite
from mien.shell.keys import SYSTEM_RANDOM
from mien.shell.lock import exclusive


@pytest.fixture(name="fleet", scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> QuickFleet:
    fleet = QuickFleet(tmp_path_factory.mktemp("quick") / "fleet")
    make_fleet(fleet, 6, "127.0.0.1", 12340)
    return fleet


def test_both_servers_know_each_other_and_the_key(fleet: QuickFleet) -> None:
    registrar, coordinator = fleet.registrar.resolve().config, fleet.coordinator.resolve().config
    assert fleet.coordinator.trusted_ca() == fleet.registrar.ca()
    assert fleet.registrar.trusted_ca() == fleet.coordinator.ca()
    assert registrar.coordinator_address == coordinator.address == "127.0.0.1:12343"
    assert coordinator.registrar_address == registrar.address == "127.0.0.1:12340"
    assert coordinator.registrar_admin_address == registrar.admin_address == "127.0.0.1:12341"
    assert registrar.release_key == coordinator.release_key == name_of(read_key(fleet.release_key_path))
    fleet.registrar.check_private()
    fleet.coordinator.check_private()
    assert fleet.operator.operator_credentials().key_pem
    assert fleet.folder.stat().st_mode & 0o077 == 0


def test_what_is_for_this_machine_alone_listens_on_it_alone(fleet: QuickFleet, tmp_path: Path) -> None:
    assert fleet.coordinator.resolve().config.listens_at == "127.0.0.1:12343"
    assert fleet.registrar.resolve().config.join_listen == "127.0.0.1:12340"
    outside = QuickFleet(tmp_path / "outside")
    make_fleet(outside, 5, "fleet.example", 7440)
    assert outside.coordinator.resolve().config.listens_at == "[::]:7443"
    assert outside.registrar.resolve().config.operators_listen == "127.0.0.1:7441"


def test_the_first_task_is_one_and_is_for_as_many_phones_as_are_invited(fleet: QuickFleet) -> None:
    task = read_task(fleet.task_path)
    assert (task.method, task.cohort.size, task.privacy.min_cohort) == ("statistics", 6, 4)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(AlreadyExistsError, match="name a new folder"):
        make_fleet(QuickFleet(tmp_path), 5, "127.0.0.1", 7440)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_taken_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    make_fleet(QuickFleet(folder), 5, "127.0.0.1", 7440)
    assert [path.name for path in tmp_path.iterdir()] == ["fleet"]


@pytest.mark.parametrize("options", [("--port", "7440"), ("--address", "fleet.example")])
def test_a_made_fleet_keeps_its_address(fleet: QuickFleet, options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli.app, ["quickstart", str(fleet.folder), *options])
    assert isinstance(done.exception, ConfigError)
    assert "127.0.0.1:12340" in str(done.exception)


def test_a_host_that_is_none_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(MienError):
        make_fleet(QuickFleet(tmp_path / "fleet"), 5, "no host", 7440)
    assert not [*tmp_path.iterdir()]


def test_what_it_says_next_names_files_of_the_fleet(fleet: QuickFleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.invites_path.write_text("a\nb\nc\n")
    fleet.say_next(3)
    said = capsys.readouterr().out
    assert f"--invites {fleet.invites_path} --count 3 --rounds 1" in said
    named = [Path(word) for word in re.findall(rf"{re.escape(str(fleet.folder))}/[\w.]+", said)]
    made = {"task.toml", "coordinator", "operator", "invites.txt"}
    assert made <= {path.name for path in named if path.exists()}
    assert {path.name for path in named} - made == {"phones", "invites.html"}
    fleet.invites_path.unlink()


@pytest.mark.parametrize(("num_open", "told"), [(0, "none still works"), (1, "1 still works"), (2, "2 still work:")])
def test_used_invites_are_not_offered_again(
    fleet: QuickFleet, capsys: pytest.CaptureFixture[str], num_open: int, told: str
) -> None:
    fleet.invites_path.write_text("a\nb\nc\n")
    (fleet.folder / "phones").mkdir()
    fleet.say_next(num_open)
    said = capsys.readouterr().out
    assert (
        f"mien-sim phones --operator {fleet.folder}/operator --count 3 --rounds 1 --out {fleet.folder}/phones2" in said
    )
    assert f"Of the 3 invites in {fleet.invites_path} {told}" in said
    assert "--invites" not in said
    fleet.invites_path.unlink()
    (fleet.folder / "phones").rmdir()


def test_invites_that_are_used_or_over_no_longer_work(tmp_path: Path) -> None:
    fleet = QuickFleet(tmp_path / "fleet")
    make_fleet(fleet, 5, "127.0.0.1", 12340)
    time = int(now().timestamp())
    urls = [Invite("127.0.0.1:1", "a" * 64, "b" * 64, letter * 32).to_url() for letter in "TUVW"]
    hashes = [token_hash(Invite.from_url(url).token) for url in urls]
    with fleet.registrar.store() as store, store.begin() as transaction:
        for token, ends, used in zip(hashes, (time + 600, time + 600, time - 1), (time, None, None), strict=False):
            transaction.add_invite(InviteRecord(token, "default", "", time - 600, ends, used))  # the fourth is unknown
    fleet.invites_path.write_text("".join(f"{url}\n" for url in urls))
    assert _num_open(fleet) == 1
    with fleet.invites_path.open("a", encoding="utf-8") as file:
        file.write("given to Ann: mien://join?v=1\n")
    assert _num_open(fleet) == 1, "a fleet starts whatever its owner noted in the file"


@pytest.fixture(name="taken")
def port_taken() -> Iterator[int]:
    """A port at which somebody listens, the others of a fleet of which it is one being free.

    It is below all that other tests' servers are given: one of theirs may have ended, and comes back to its port.
    """
    for last in SYSTEM_RANDOM.sample(range(10_007, 12_000, 8), 200):
        with contextlib.ExitStack() as stack:
            below, taken = [stack.enter_context(socket.socket()) for _ in range(3)], socket.socket()
            stack.enter_context(taken)
            try:
                for number, each in enumerate((taken, *below)):
                    each.bind(("127.0.0.1", last - number))
            except OSError:
                continue
            for each in below:
                each.close()
            taken.listen()
            yield last
            return
    pytest.skip("no port is free")


@pytest.mark.parametrize("below", [0, 1, 3])
def test_a_port_in_use_names_the_flag_and_makes_no_folder(tmp_path: Path, taken: int, below: int) -> None:
    done = CliRunner().invoke(cli.app, ["quickstart", str(tmp_path / "fleet"), "--port", str(taken - below)])
    assert isinstance(done.exception, ConfigError)
    assert re.search(rf"port {taken} is in use; .*quickstart {tmp_path}/fleet --port PORT", str(done.exception))
    assert not [*tmp_path.iterdir()]


def test_a_made_fleet_whose_port_is_in_use_names_another_folder_too(tmp_path: Path, taken: int) -> None:
    fleet = QuickFleet(tmp_path / "fleet")
    make_fleet(fleet, 5, "127.0.0.1", taken)
    done = CliRunner().invoke(cli.app, ["quickstart", str(fleet.folder)])
    assert isinstance(done.exception, ConfigError)
    assert re.search(rf"port {taken} is in use; phones know .* NEW_FOLDER --port PORT", str(done.exception))


def test_a_file_in_the_fleets_place_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = CliRunner().invoke(cli.app, ["quickstart", str(tmp_path / "notes.txt"), "--port", "7000"])
    assert isinstance(done.exception, AlreadyExistsError)
    assert f"{tmp_path}/notes.txt is a file; name a new folder" in str(done.exception)


def test_a_fleet_that_is_up_says_what_to_type(fleet: QuickFleet) -> None:
    for home in (fleet.registrar, fleet.coordinator):
        with exclusive(home.lock_path, program=home.name):
            done = CliRunner().invoke(cli.app, ["quickstart", str(fleet.folder)])
        assert isinstance(done.exception, AlreadyExistsError)
        assert f"is up already; go on with it by mien-coordinator task list --home {fleet.folder}/coordinator" in str(
            done.exception
        )


@pytest.mark.parametrize(
    ("address", "says"), [("no.such.host.invalid", "cannot resolve"), ("10.0.0.1:7440", "--port has the port")]
)
def test_an_address_of_no_use_makes_no_folder(tmp_path: Path, address: str, says: str) -> None:
    done = CliRunner().invoke(cli.app, ["quickstart", str(tmp_path / "fleet"), "--address", address])
    assert isinstance(done.exception, ConfigError)
    assert says in str(done.exception)
    assert not [*tmp_path.iterdir()]


def test_an_address_of_ipv6_needs_no_brackets() -> None:
    assert _host_of("::1") == _host_of("[::1]") == "[::1]"
