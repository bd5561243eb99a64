"""The demo's parts: whose faces, child processes that never stay behind, state that is nobody else's, numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.runtimes import load_runtime
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptDataError,
    EmptyFolderError,
    LateError,
    LowQualityError,
    MissingDependencyError,
    NotFoundError,
    UnreachableError,
)
from mien.evaluation import Comparisons, normalise
from mien.evaluation.protocols.folders import PairSample, sample_pairs
from mien.shell import provenance
from mien.specs import FaceInputSpec, Threshold
from simulation.demo import measure, outcome, people, programs, run
from simulation.demo.phone import PhonePlan
from simulation.demo.programs import Programs, free_ports
from simulation.demo.stage import MARKER, DemoOptions, Stage, _fresh_state, ended_by_signals, state_folder
from simulation.faces.datasets import LabelledCrops, digest, find_people, read_people
from simulation.pages.demo_page import DemoReport
from simulation.synthetic import committed_faces
from simulation.testing import free_port
from tests.golden import _reference_evaluation as reference
from tests.simulation.pages.synthetic_demo import demo_report
from tests.simulation.untrained import untrained_model

ODD = Path(__file__).resolve().parents[2] / "data" / "faces"
SPEC = FaceInputSpec()
STUBBORN = """import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True); time.sleep(600)"""


def script(path: Path, text: str) -> str:
    """Write a Python program and return its path, which `Programs` takes in place of a name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def is_running(pid: int) -> bool:
    """Return whether a process exists, zombies not counted."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends while it is read
        return False


def wait_for(condition: Any, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path / "logs") as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a moment only for children to end by themselves."""
    monkeypatch.setattr(programs, "STOP_S", 0.3)


class TestCall:
    def test_answer_is_the_last_line(self, children: Programs, tmp_path: Path) -> None:
        program = script(tmp_path / "p", "import json, sys\nprint('{}')\nprint(json.dumps(sys.argv[1:]))")
        assert children.call(program, "verb", "--flag") == ["verb", "--flag", "--json"]
        assert children.call(script(tmp_path / "quiet", ""), "verb") is None

    def test_error_is_raised_here_although_there_was_progress(self, children: Programs, tmp_path: Path) -> None:
        text = """
import sys
print('{"event": "fetching"}')
print("some warning", file=sys.stderr)
print('{"error": "low_quality", "message": "2 of 5 pictures can be used", "refused": []}', file=sys.stderr)
sys.exit(13)"""
        with pytest.raises(LowQualityError, match=r"enroll: 2 of 5 pictures"):
            children.call(script(tmp_path / "mien-device", text), "enroll")

    def test_answer_that_comes_with_an_exit_code(self, children: Programs, tmp_path: Path) -> None:
        program = script(tmp_path / "p", 'import sys\nprint(\'{"decision": "unknown"}\')\nsys.exit(1)')
        assert children.call(program, "verify", answers=(0, 1)) == {"decision": "unknown"}
        with pytest.raises(CorruptDataError, match="exit code 1"):
            children.call(program, "verify")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("raise SystemExit(7)", r"exit code 7\): it said nothing"),
            ("{}['key']", "KeyError: 'key'"),
            ("import os; os.kill(os.getpid(), 9)", r"exit code -9\): it said nothing"),
            ('import sys; print(\'{"error": "unheard_of"}\', file=sys.stderr); sys.exit(3)', "unheard_of"),
            ("print('Traceback')", "not JSON: 'Traceback'"),
            ("import sys; sys.stdout.buffer.write(b'\\xff')", "not JSON"),
        ],
    )
    def test_defects_are_told(self, children: Programs, tmp_path: Path, text: str, says: str) -> None:
        with pytest.raises(CorruptDataError, match=says):
            children.call(script(tmp_path / "p", text), "verb")

    def test_megabytes_of_output_block_nobody(self, children: Programs, tmp_path: Path) -> None:
        text = (
            "import sys\nfor _ in range(300):\n  sys.stderr.write('x' * 9999)\n  sys.stdout.write(' ' * 9999)\nprint(1)"
        )
        program = script(tmp_path / "p", text)
        assert children.call(program, "verb") == 1
        assert list(children.lines(program, "verb")) == [1]

    def test_program_that_is_not_installed(self, children: Programs) -> None:
        with pytest.raises(MissingDependencyError, match="no program mien-nothing beside"):
            children.call("mien-nothing", "verb")

    @pytest.mark.usefixtures("impatient")
    def test_program_that_hangs(self, children: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(programs, "CALL_S", 0.5)
        with pytest.raises(UnreachableError, match="took more than"):
            children.call(script(tmp_path / "p", STUBBORN), "verb")
        (child,) = children._children  # however far it had come
        assert child.poll() is not None

    def test_children_have_no_terminal_and_none_of_our_settings(
        self, children: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MIEN_HOME", "/elsewhere")
        with Programs(tmp_path / "other", threads=3) as running:
            program = script(
                tmp_path / "p",
                "import json, os, sys\nnames = [n for n in os.environ if n.startswith('MIEN_')]\n"
                "print(json.dumps([names, os.environ['OMP_NUM_THREADS'], sys.stdin.read()]))",
            )
            assert running.call(program, "verb") == [[], "3", ""]


class TestLines:
    def test_lines_come_as_they_are_printed(self, children: Programs, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        text = f"""
import os, time
print(1, flush=True)
while not os.path.exists({str(gate)!r}):
    time.sleep(0.01)
print(2)"""
        lines = children.lines(script(tmp_path / "p", text), "watch")
        assert next(lines) == 1
        gate.touch()
        assert list(lines) == [2]

    @pytest.mark.parametrize("end", ["sys.exit(50)", "os.kill(os.getpid(), 9)"])
    def test_end_that_is_none_is_an_error(self, children: Programs, tmp_path: Path, end: str) -> None:
        text = f"""
import os, sys
print(1, flush=True)
print('{{"error": "unreachable", "message": "it went away"}}', file=sys.stderr, flush=True)
{end}"""
        lines = children.lines(script(tmp_path / "p", text), "watch")
        assert next(lines) == 1
        with pytest.raises(UnreachableError, match="it went away"):
            next(lines)

    def test_lines_are_whole_however_they_come(self, children: Programs, tmp_path: Path) -> None:
        text = """
import sys, time
for part in ("[1", ",2]\\n[3]\\n[", "4]"):
    sys.stdout.write(part)
    sys.stdout.flush()
    time.sleep(0.1)"""
        assert list(children.lines(script(tmp_path / "p", text), "watch")) == [[1, 2], [3], [4]]

    @pytest.mark.usefixtures("impatient")
    def test_meanwhile_may_end_it(self, children: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(programs, "POLL_S", 0.1)

        def give_up() -> None:
            raise LateError("nothing comes")

        lines = children.lines(script(tmp_path / "p", "import time; time.sleep(600)"), "watch", meanwhile=give_up)
        with pytest.raises(LateError, match="nothing comes"):
            next(lines)
        assert not any(child.poll() is None for child in children._children)

    @pytest.mark.usefixtures("impatient")
    def test_reader_who_fails_leaves_nothing_behind(self, tmp_path: Path) -> None:
        text = f"import os\nprint(os.getpid(), flush=True)\n{STUBBORN}"
        program = script(tmp_path / "p", text.replace("print('up', flush=True); ", ""))
        pids = []
        with pytest.raises(LateError), Programs(tmp_path / "logs") as running:  # noqa: PT012
            for pid in running.lines(program, "watch"):
                pids.append(pid)
                raise LateError("enough")
        assert len(pids) == 1
        assert not is_running(pids[0])


class TestKilled:
    """A program that is killed leaves neither children nor keys, whatever it was at."""

    @pytest.mark.parametrize("at", ["running.start('server', child)", "running.call(child, 'verb')"])
    def test_children_and_keys_go(self, tmp_path: Path, at: str) -> None:
        child = script(
            tmp_path / "p",
            f"import os, time; open({str(tmp_path)!r} + '/pid', 'w').write(f'{{os.getpid()}} ')\ntime.sleep(600)",
        )
        text = f"""
import time
from pathlib import Path
from simulation.demo.programs import Programs
from simulation.demo.stage import state_folder
out, child = Path({str(tmp_path / "out")!r}), {child!r}
with state_folder(out) as folder, Programs(out / "logs", state=folder) as running:
    (folder / "ca.key").touch()
    {at}
    time.sleep(600)"""
        with subprocess.Popen([sys.executable, "-c", text]) as parent:
            wait_for(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text().endswith(" "), 60.0)
            assert (tmp_path / "out" / "state" / "ca.key").exists()
            parent.kill()
        wait_for(lambda: not is_running(int((tmp_path / "pid").read_text())), 60.0)
        wait_for(lambda: not (tmp_path / "out" / "state").exists(), 60.0)
        assert (tmp_path / "out" / "logs").is_dir()

    def test_folder_of_the_next_program_stays(self, tmp_path: Path) -> None:
        with state_folder(tmp_path) as folder:  # which has the lock
            code = f"from pathlib import Path; from simulation.demo import guard; guard._remove(Path({str(folder)!r}))"
            subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
            assert folder.is_dir()

    def test_child_that_has_ended_is_nobody_elses_number(self, tmp_path: Path) -> None:
        """Only what still runs is ended: the numbers of processes are used again."""
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
            said = f"+{stranger.pid}\n-{stranger.pid}\n"
            guard = subprocess.Popen(
                [sys.executable, "-m", "simulation.demo.guard", str(os.getpid())], stdin=subprocess.PIPE
            )
            with pytest.raises(subprocess.TimeoutExpired):  # this process lives on
                guard.communicate(said.encode(), timeout=1.0)
            assert stranger.poll() is None
            guard.kill()
            guard.wait()
            stranger.kill()


class TestServers:
    def test_output_is_kept(self, children: Programs, tmp_path: Path) -> None:
        program = script(tmp_path / "p", "import sys; print('out'); print('err', file=sys.stderr)")
        assert children.start("server", program).wait(60) == 0
        assert sorted(children.log_of("server").read_text().split()) == ["err", "out"]
        with pytest.raises(AlreadyExistsError):
            children.start("server", program)

    def test_server_that_crashes_is_told_with_its_last_words(self, children: Programs, tmp_path: Path) -> None:
        port = free_port()
        children.start("server", script(tmp_path / "p", "print('warming up')\nraise OSError('address in use')"))
        with pytest.raises(UnreachableError, match=r"exit code 1.*server\.log ends: OSError: address in use"):
            children.wait_for_port("server", f"127.0.0.1:{port}")
        children.start("silent", script(tmp_path / "silent", "raise SystemExit(9)"))
        with pytest.raises(UnreachableError, match=r"exit code 9.*silent\.log is empty"):
            children.wait_for_port("silent", f"127.0.0.1:{port}")

    def test_server_that_never_listens(self, children: Programs, tmp_path: Path) -> None:
        port = free_port()
        children.start("server", script(tmp_path / "p", "import time; time.sleep(600)"))
        with pytest.raises(UnreachableError, match="does not answer after 0 s"):
            children.wait_for_port("server", f"127.0.0.1:{port}", timeout_s=0.3)

    def test_server_that_listens_late(self, children: Programs, tmp_path: Path) -> None:
        port = free_port()
        text = f"import socket, time; time.sleep(0.3); s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
        children.start("server", script(tmp_path / "p", text))
        children.wait_for_port("server", f"127.0.0.1:{port}")
        children.require_running("server")
        children.stop("server")
        with pytest.raises(UnreachableError, match=f"exit code -{signal.SIGTERM}"):
            children.require_running("server")

    def test_ports_are_free_and_different(self) -> None:
        ports = free_ports(5)
        assert len(set(ports)) == 5
        assert set(ports) <= set(programs._PORTS)
        for port in ports:
            socket.create_server(("127.0.0.1", port)).close()

    def test_ports_that_are_taken_are_passed_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        free, taken = sorted(free_ports(2))
        monkeypatch.setattr(programs, "_PORTS", [free, taken])
        with socket.create_server(("127.0.0.1", taken)):
            assert free_ports(1) == [free]
            with pytest.raises(UnreachableError, match=r"no 2 ports from \d+ to \d+ are free"):
                free_ports(2)


class TestNothingStays:
    def start(self, running: Programs, tmp_path: Path, *texts: str) -> list[int]:
        pids = []
        for number, text in enumerate(texts):
            name = f"child{number}"
            pids.append(running.start(name, script(tmp_path / name, text)).pid)
            wait_for(lambda name=name: running.log_of(name).read_text().startswith("up"))
        return pids

    def test_others_end_and_those_that_are_named_stay(self, tmp_path: Path) -> None:
        text = 'import time; print("up", flush=True); time.sleep(600)'
        with Programs(tmp_path / "logs") as running:
            kept, *ended = self.start(running, tmp_path, text, text, text)
            running.stop_others("child0", "never started")
            assert is_running(kept)
            assert running.process("child0").pid == kept
            assert not any(map(is_running, ended))
        assert not is_running(kept)

    def test_children_may_end_in_order(self, tmp_path: Path) -> None:
        text = """
import signal, sys, time
def end(*_): print("goodbye", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)"""
        with Programs(tmp_path / "logs") as running:
            (pid,) = self.start(running, tmp_path, text)
        assert not is_running(pid)
        assert running.log_of("child0").read_text() == "up\ngoodbye\n"

    def test_a_signal_while_a_child_begins_ends_that_child_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The handler's exception comes up in the very call that has begun the child, before anybody noted it."""
        begun = list[int]()

        class Interrupted(subprocess.Popen[bytes]):
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                if "sleeper" in str(arguments[0]):
                    begun.append(self.pid)
                    os.kill(os.getpid(), signal.SIGUSR1)
                    time.sleep(0.2)  # the main thread has time to be told

        def ends(*_: object) -> None:
            raise SystemExit(1)

        sleeper = script(tmp_path / "sleeper", "import time; time.sleep(600)")
        before = signal.signal(signal.SIGUSR1, ends)
        try:
            monkeypatch.setattr(subprocess, "Popen", Interrupted)
            with pytest.raises(SystemExit), Programs(tmp_path / "logs") as running:
                running.start("sleeper", sleeper)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(begun) == 1
        assert not is_running(begun[0])

    @pytest.mark.usefixtures("impatient")
    @pytest.mark.parametrize("error", [LateError("x"), KeyboardInterrupt(), SystemExit(1), RuntimeError()])
    def test_after_an_exception(self, tmp_path: Path, error: BaseException) -> None:
        pids = []
        with pytest.raises(type(error)), Programs(tmp_path / "logs") as running:  # noqa: PT012
            pids = self.start(running, tmp_path, STUBBORN, "print('up', flush=True); import time; time.sleep(600)")
            raise error
        assert len(pids) == 2
        assert not any(map(is_running, pids))

    def test_who_does_not_listen_is_killed_in_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(programs, "STOP_S", 0.5)
        with Programs(tmp_path / "logs") as running:
            pids = self.start(running, tmp_path, STUBBORN, STUBBORN)
            began = time.monotonic()
            running.stop("child0", "child1")
            assert 0.5 <= time.monotonic() - began < 60  # together, not one after the other
            assert not any(map(is_running, pids))

    def test_interrupt_while_waiting_for_their_end(self, tmp_path: Path) -> None:
        """The second Ctrl-C of somebody who cannot wait."""
        pids = []
        with pytest.raises(KeyboardInterrupt), Programs(tmp_path / "logs") as running:  # noqa: PT012
            pids = self.start(running, tmp_path, STUBBORN, STUBBORN)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert len(pids) == 2
        assert not any(map(is_running, pids))

    def test_signals_end_the_demo_as_exceptions_do(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            inherited = signal.signal(number, signal.SIG_DFL)  # under nohup these tests inherit that SIGHUP is ignored
            try:
                with pytest.raises(SystemExit) as raised, ended_by_signals():
                    signal.raise_signal(number)
                assert raised.value.code == 128 + number
                assert signal.getsignal(number) is signal.SIG_DFL
            finally:
                signal.signal(number, inherited)

    def test_demo_under_nohup_outlives_its_terminal(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with ended_by_signals():
                signal.raise_signal(signal.SIGHUP)
        finally:
            signal.signal(signal.SIGHUP, before)


class TestState:
    def test_is_made_and_removed(self, tmp_path: Path) -> None:
        with state_folder(tmp_path / "out") as folder:
            assert folder == tmp_path / "out" / "state"
            (folder / "phones" / "x").write_text("x")
        assert not folder.exists()
        with pytest.raises(LateError), state_folder(tmp_path / "out") as folder:  # noqa: PT012
            (folder / "phones" / "x").write_text("x")
            raise LateError("too late")
        assert not folder.exists()

    def test_one_demo_at_a_time(self, tmp_path: Path) -> None:
        with state_folder(tmp_path / "out") as folder:
            with pytest.raises(AlreadyExistsError, match="--out"), state_folder(tmp_path / "out"):
                raise AssertionError
            assert (folder / MARKER).is_file()

    def test_a_fleet_that_is_kept_stays_and_is_nobodys_to_empty(self, tmp_path: Path) -> None:
        with state_folder(tmp_path / "out", keep=True) as folder:
            (folder / "release.key").write_text("key")
        with pytest.raises(AlreadyExistsError, match="--keep"), state_folder(tmp_path / "out"):
            pass
        assert (folder / "release.key").read_text() == "key"
        with pytest.raises(LateError), state_folder(tmp_path / "other", keep=True) as folder:
            raise LateError("it went wrong")
        assert not folder.exists()

    def test_what_a_dead_demo_left_is_emptied(self, tmp_path: Path) -> None:
        folder = _fresh_state(tmp_path)
        (folder / "phones" / "old").mkdir()
        assert [path.name for path in sorted(_fresh_state(tmp_path).rglob("*"))] == [MARKER, "phones"]

    @pytest.mark.parametrize("kind", ["folder", "empty folder", "marker folder", "file", "link", "link to a demo's"])
    def test_what_the_demo_did_not_make_is_left_alone(self, tmp_path: Path, kind: str) -> None:
        mine = tmp_path / "mine"
        mine.mkdir()
        (mine / "precious").write_text("keep")
        state = tmp_path / "out" / "state"
        state.parent.mkdir()
        if kind == "file":
            state.write_text("keep")
        elif kind.startswith("link"):
            if kind == "link to a demo's":
                (mine / MARKER).touch()
            state.symlink_to(mine)
        else:
            state.mkdir()
            if kind == "folder":
                (state / "precious").write_text("keep")
            if kind == "marker folder":
                (state / MARKER).mkdir()
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(AlreadyExistsError, match="was not made by the demo"), state_folder(tmp_path / "out"):
            raise AssertionError
        assert sorted(path for path in tmp_path.rglob("*") if path.name != ".lock") == before
        assert (mine / "precious").read_text() == "keep"


def files_of(group: Any) -> set[str]:
    return {hashlib.sha256(path.read_bytes()).hexdigest() for files in group.values() for path in files}


class TestPeople:
    def test_shipped_people(self) -> None:
        chosen = people.synthetic_people(6, 2)
        groups = (chosen.owners, chosen.public, chosen.test)
        assert [len(group) for group in groups] == [12, 10, 20]
        assert chosen == people.synthetic_people(6, 2)
        assert set(chosen.phones) < set(people.synthetic_people(10, 2).phones)
        self.check_disjoint(*groups)
        for name in chosen.owners:
            assert chosen.enrolled(name) + chosen.probes(name) == chosen.owners[name]
            assert (len(chosen.enrolled(name)), len(chosen.probes(name))) == (8, 2)
        with pytest.raises(EmptyFolderError, match="10 phones or fewer, or --faces"):
            people.synthetic_people(11, 2)
        assert len(people.synthetic_people(20, 1).phones) == 20

    def test_public_people_are_of_a_domain_of_their_own(self) -> None:
        chosen = people.synthetic_people(10, 2)
        kinds = [{name.split("_")[0] for name in group} for group in (chosen.owners, chosen.test, chosen.public)]
        assert chosen.shifted
        assert kinds[0] == kinds[1] == {name.split("_")[0] for name in people.synthetic_people(4, 2).owners}
        assert not kinds[0] & kinds[2]

    def test_everybody_is_on_one_phone(self) -> None:
        chosen = people.synthetic_people(5, 2)
        assert [len(group) for group in chosen.phones.values()] == [2] * 5
        assert [name for group in chosen.phones.values() for name in group] == list(chosen.owners)
        assert all(name == group[0] for name, group in chosen.phones.items())

    def test_phones_take_what_they_are_given(self) -> None:
        """Every shipped person can enrol, and every phone's owner has a picture to verify with."""
        pipeline = FacePipeline(SPEC)
        chosen = people.synthetic_people(10, 2)
        for name in chosen.phones:
            assert any(people._is_usable(path, pipeline) for path in chosen.probes(name)), name
        for name in chosen.owners:
            assert sum(people._is_usable(path, pipeline) for path in chosen.enrolled(name)[:5]) >= 3

    def test_own_people(self, tmp_path: Path) -> None:
        self.fill(tmp_path)
        chosen = people.people_from(tmp_path, 4, 1, seed=1)
        assert [len(group) for group in (chosen.owners, chosen.public, chosen.test)] == [4, 8, 9]
        shared = people.people_from(tmp_path, 4, 2, seed=1)
        assert [len(group) for group in (shared.owners, shared.public, shared.test)] == [8, 6, 7]
        assert not chosen.shifted
        assert chosen.dataset == tmp_path.name
        self.check_disjoint(chosen.owners, chosen.public, chosen.test)
        assert chosen == people.people_from(tmp_path, 4, 1, seed=1)
        assert set(people.people_from(tmp_path, 4, 1, seed=2).phones) != set(chosen.phones)

    def test_owner_of_a_phone_can_enrol_and_verify(self, tmp_path: Path) -> None:
        """Somebody with two usable pictures is never one; unusable pictures never are what a phone verifies with."""
        self.fill(tmp_path)
        poor = sorted(find_people(tmp_path))[:6]
        for name in poor:
            for path in (tmp_path / name).iterdir():
                if path.name > "03.jpg":
                    path.unlink()
                    shutil.copy(ODD / "two_faces.jpg", path)
        some = sorted(find_people(tmp_path))[6]
        (tmp_path / some / "05.jpg").unlink()
        shutil.copy(ODD / "no_face.jpg", tmp_path / some / "05.jpg")
        for seed in range(3):
            chosen = people.people_from(tmp_path, 6, 2, seed=seed)
            assert not set(chosen.owners) & set(poor)
            if some in chosen.owners:
                assert [path.name for path in chosen.probes(some)] == ["03.jpg", "04.jpg"]
                assert "05.jpg" in [path.name for path in chosen.enrolled(some)]

    def test_too_few_people(self, tmp_path: Path) -> None:
        self.fill(tmp_path, 12)
        with pytest.raises(EmptyFolderError, match=r"holds 12 people .* needs 13 for 4 phones of 1"):
            people.people_from(tmp_path, 4, 1, seed=0)
        for person in tmp_path.iterdir():
            (person / "00.jpg").unlink()
        with pytest.raises(EmptyFolderError, match="nobody with at least 6 images"):
            people.people_from(tmp_path, 4, 1, seed=0)

    def test_too_few_who_can_enrol(self, tmp_path: Path) -> None:
        for number in range(20):
            (tmp_path / f"p{number:02}").mkdir()
            for image in range(6):
                shutil.copy(ODD / "no_face.jpg", tmp_path / f"p{number:02}" / f"{image}.jpg")
        with pytest.raises(EmptyFolderError, match="only 0 people"):
            people.people_from(tmp_path, 4, 1, seed=0)

    def fill(self, folder: Path, num_people: int = 21) -> None:
        """Six pictures each of some public and test people."""
        everybody = {**committed_faces("public"), **committed_faces("test")}
        for name, files in sorted(everybody.items())[:num_people]:
            (folder / name).mkdir()
            for path in files[:6]:
                shutil.copy(path, folder / name)

    def check_disjoint(self, *groups: Any) -> None:
        names = [name for group in groups for name in group]
        assert len(set(names)) == len(names)
        assert sum(len(files_of(group)) for group in groups) == len(set().union(*map(files_of, groups)))


@pytest.fixture(scope="module")
def lfw_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty people with six pictures, of which three show no face."""
    root = tmp_path_factory.mktemp("lfw")
    for name, files in committed_faces("public").items():
        (root / name).mkdir()
        for path in files[:6]:
            shutil.copy(path, root / name)
    for path in [sorted(root.rglob("*.jpg"))[i] for i in (0, 50, 119)]:
        path.unlink()
        shutil.copy(ODD / "no_face.jpg", path)
    return root


class TestOwnSample:
    def test_pairs_are_of_the_faces_that_were_drawn(self, lfw_like: Path) -> None:
        sample = measure.OwnSample.read(lfw_like, SPEC)
        keys = [f"{p.parent.name}/{p.name}" for p in sorted(lfw_like.rglob("*.jpg"))]
        drawn = measure.draw_pairs(keys, [k.split("/")[0] for k in keys])
        lost = {keys[i] for i in (0, 50, 119)}
        assert {failure.name for failure in sample.faces.failures} <= lost
        assert sample.faces.failures
        pipeline = FacePipeline(SPEC, policy=None, choice=ChoiceRule.CENTRE)
        crops = {k: pipeline.acquire_file(lfw_like / k).crop for k in keys if k not in lost}
        expected = [
            (keys[a], keys[b], mated)
            for a, b, mated in zip(drawn.first, drawn.second, drawn.mated, strict=True)
            if not {keys[a], keys[b]} & lost
        ]
        pairs = sample.pairs
        assert len(expected) == pairs.mated.size < 300
        for (a, b, mated), i, j, is_mated in zip(expected, pairs.first, pairs.second, pairs.mated, strict=True):
            assert np.array_equal(sample.faces.crops[i], crops[a])
            assert np.array_equal(sample.faces.crops[j], crops[b])
            assert mated == is_mated == (sample.faces.labels[i] == sample.faces.labels[j])

    def test_strangers_are_paired_among_the_mated_pairs_pictures(self) -> None:
        """Each picture is read once and in use twice, and no pair comes twice."""
        keys = [f"p{person:03}/{image}" for person in range(400) for image in range(3)]
        names = [key.split("/")[0] for key in keys]
        drawn = measure.draw_pairs(keys, names)
        mated = sample_pairs(keys, names, num_mated=150, num_non_mated=0, seed=0)
        assert drawn.mated.tolist() == [True] * 150 + [False] * 150
        np.testing.assert_array_equal(drawn.first[:150], mated.first)
        np.testing.assert_array_equal(drawn.second[:150], mated.second)
        assert set(drawn.used) == set(mated.used)
        assert len(drawn.used) == 300
        pairs = {frozenset(pair) for pair in zip(drawn.first.tolist(), drawn.second.tolist(), strict=True)}
        assert len(pairs) == 300
        who = [[names[a], names[b]] for a, b in zip(drawn.first, drawn.second, strict=True)]
        assert [a == b for a, b in who] == drawn.mated.tolist()
        assert [[int(a[1:]), int(b[1:])] for a, b in who] == drawn.subjects.tolist()

    def test_folds_hold_both_kinds(self) -> None:
        mated = np.arange(297) % 3 > 0
        folds = measure._folds(mated)
        for kind in (True, False):
            counts = np.bincount(folds[mated == kind], minlength=10)
            assert counts.size == 10
            assert counts.max() - counts.min() <= 1

    def test_accuracy_is_that_of_the_definition(self) -> None:
        rng = np.random.default_rng(5)
        crops = rng.integers(0, 256, (24, 112, 112, 3), dtype=np.uint8)
        faces = LabelledCrops(crops, np.repeat(np.arange(8), 3), tuple("abcdefgh"))
        first, second = np.triu_indices(24, k=1)
        mated = faces.labels[first] == faces.labels[second]
        pairs = PairSample(first, second, mated, np.stack([faces.labels[first], faces.labels[second]], 1), 0)
        before, after = untrained_model(1), untrained_model(2)
        runtime = load_runtime(before.spec, before.layout)
        own = measure.own_population(measure.OwnSample(faces, pairs), runtime, before, after)
        for model, accuracy in ((before, own.accuracy_before), (after, own.accuracy_after)):
            unit = normalise(load_runtime(model.spec, model.layout).embed(model.theta, crops))
            distances = 2 - 2 * (unit[first] * unit[second]).sum(axis=1)
            accuracies, _ = reference.kfold(distances.tolist(), mated.tolist(), measure._folds(mated).tolist())
            assert accuracy == pytest.approx(np.mean(accuracies))
        assert (own.num_mated, own.num_non_mated, own.num_fte) == (24, 252, 0)

    def test_reasons_for_measuring_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MIEN_DATA", raising=False)
        assert outcome._own_sample(None, SPEC) == (None, "MIEN_DATA names no folder with lfw/images")
        monkeypatch.setenv("MIEN_DATA", str(tmp_path))
        assert outcome._own_sample(None, SPEC) == (None, "MIEN_DATA names no folder with lfw/images")
        images = tmp_path / "lfw" / "images"
        images.mkdir(parents=True)
        assert "holds nobody" in outcome._own_sample(None, SPEC)[1]
        (images / "Ada").mkdir()
        shutil.copy(ODD / "no_face.jpg", images / "Ada")
        assert "only 0 mated pairs" in outcome._own_sample(None, SPEC)[1]
        (tmp_path / "link").symlink_to(images)
        assert "the phones hold people of LFW" in outcome._own_sample(tmp_path / "link", SPEC)[1]


class TestBeside:
    def test_what_is_at_work_ends_with_the_demo_and_what_waits_never_begins(self) -> None:
        began, waited = threading.Event(), list[int]()

        def read(is_over: Any) -> None:
            began.set()
            wait_for(is_over)

        with pytest.raises(LateError), run.one_thread_beside() as (beside, is_over):  # noqa: PT012
            reading = beside.submit(read, is_over)
            waiting = beside.submit(waited.append, 1)
            assert began.wait(60.0)
            raise LateError("enough")
        assert reading.result() is None
        assert waiting.cancelled()
        assert waited == []

    def test_pictures_are_read_no_further(self) -> None:
        asked = []
        with pytest.raises(LateError, match="not wanted any more"):
            read_people(committed_faces("test"), FacePipeline(SPEC), lambda: asked.append(1) or len(asked) == 3)
        assert len(asked) == 3


class TestMeasure:
    def test_interval_holds_the_rate_and_follows_the_seed(self) -> None:
        rng = np.random.default_rng(0)
        subjects = np.repeat(np.arange(6), 10)
        others = np.stack([np.arange(300) % 6, (np.arange(300) + 1 + np.arange(300) // 6 % 5) % 6], axis=1)
        scores = Comparisons(rng.normal(0.6, 0.2, 60), rng.normal(0.2, 0.2, 300), subjects, others)
        result = measure.model_result("m", untrained_model(), scores, 3, seed=4)
        assert result.eer_interval is not None
        assert result.eer_interval.low < measure.equal_error(scores) < result.eer_interval.high
        assert result == measure.model_result("m", untrained_model(), scores, 3, seed=4)
        assert result.num_fte == 3

    def test_equal_error_is_that_of_the_definition(self) -> None:
        rng = np.random.default_rng(1)
        scores = Comparisons(rng.normal(0.6, 0.2, 40), rng.normal(0.2, 0.2, 90))
        expected = reference.eer(scores.mated.tolist(), scores.non_mated.tolist())
        assert measure.equal_error(scores) == pytest.approx(float(expected), abs=1e-12)


class TestTask:
    def test_default_task_is_shipped_and_takes_all_phones(self) -> None:
        for num_phones in (4, 10, 32):
            task = run.read_task(DemoOptions(Path("out"), num_phones=num_phones))
            assert task.cohort.size == task.cohort.num_selected == num_phones
            assert 2 <= task.privacy.min_cohort <= task.cohort.min_reports <= num_phones

    def test_rounds_and_floors(self, tmp_path: Path) -> None:
        file = tmp_path / "task.toml"
        file.write_text(
            'name = "t"\nrounds = 7\n[cohort]\nsize = 20\nmin_reports = 18\nover_selection = 1.5\n'
            "[privacy]\nmin_cohort = 16\n"
        )
        task = run.read_task(DemoOptions(Path("out"), num_phones=5, task=file))
        assert (task.rounds, task.cohort.size, task.cohort.min_reports, task.privacy.min_cohort) == (7, 5, 5, 5)
        assert run.read_task(DemoOptions(Path("out"), rounds=2, task=file, num_phones=32)).rounds == 2
        with pytest.raises(NotFoundError):
            run.read_task(DemoOptions(Path("out"), task=tmp_path / "none.toml"))
        assert run.read_task(DemoOptions(Path("out"), rounds=1)).rounds == 1
        with pytest.raises(ConfigError, match="--rounds is 2, and statistics sums once"):
            run.read_task(DemoOptions(Path("out"), rounds=2))

    def test_people_share_a_phone_where_the_method_takes_several(self) -> None:
        trains = DemoOptions(Path("out"), task=run.DEFAULT_TASK.with_name("fedface.toml"), num_phones=4)
        sums = DemoOptions(Path("out"), num_phones=4)
        assert [run.people_of(each, run.read_task(each)).per_phone for each in (trains, sums)] == [1, 2]

    @pytest.mark.parametrize(
        ("fmrs", "shifted", "target"), [((0.1, 0.01), False, 0.01), ((0.1, 0.01), True, 0.1), ((0.1,), False, 0.1)]
    )
    def test_rate_at_which_a_phone_decides(self, fmrs: tuple[float, ...], shifted: bool, target: float) -> None:
        model = untrained_model()
        thresholds = tuple(Threshold(0.5, fmr, "public", 1350, 100_000, model.model_id, "2026-01-01") for fmr in fmrs)
        model = dataclasses.replace(model, spec=dataclasses.replace(model.spec, thresholds=thresholds))
        who = dataclasses.replace(people.synthetic_people(4, 2), shifted=shifted)
        assert run.target_fmr(model, who) == target


class TestPhone:
    def test_plan_is_its_owners_alone_and_shows_no_invite(self, tmp_path: Path) -> None:
        plan = PhonePlan("home", "mien://join?token=secret", {"Ada": ["a.jpg"]}, {"runtime": "onnxruntime"})
        plan.write(tmp_path / "plan.json")
        assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o600
        assert PhonePlan.read(tmp_path / "plan.json") == plan
        assert "secret" not in repr(plan)


class TestOutcome:
    def report(self, method: str, reveals: tuple[str, ...], *, masked: bool = True) -> DemoReport:
        return dataclasses.replace(demo_report(), method=method, reveals=reveals, masked=masked)

    def test_what_the_server_learned_is_said_by_method(self) -> None:
        sums = outcome.learned(self.report("statistics", ("class_moment",)))
        assert "opened one sum over 7 phones" in sums
        assert "whether it is among the people of so few phones" in sums
        assert "phone by phone" not in sums
        trained = outcome.learned(self.report("fedface", ("class_embeddings",)))
        assert "each over 7 phones or more" in trained
        assert "phone by phone: class_embeddings" in trained
        assert "could read each phone's update" in outcome.learned(self.report("fedface", (), masked=False))

    def test_check_says_what_its_threshold_gives(self) -> None:
        scores = Comparisons(np.array([0.2, 0.5, 0.9, 0.95]), np.array([0.1] * 9 + [0.6]))
        said = outcome._with_rates(dataclasses.replace(demo_report().phone, threshold=0.5), scores).threshold_source
        assert said.endswith("it gives FMR 10.00% and TAR 75.0%.")


EVENT = {"task": {"state": "running", "rounds_total": 1, "reason": ""}, "round": None}


class TestSteps:
    """The steps with stand-ins for Mien's programs, which do what the real ones cannot be made to do at will."""

    @pytest.fixture
    def stage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
        (tmp_path / "bin").mkdir()
        options = DemoOptions(tmp_path / "out", num_phones=4, rounds=1)
        with state_folder(options.out) as folder, Programs(tmp_path / "logs") as running:
            monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
            yield Stage(options, folder, running, people.synthetic_people(4, 2), run.read_task(options))

    def stand_in(self, stage: Stage, name: str, text: str) -> None:
        program = Path(sys.executable).parent / name
        program.write_text(f"#!{os.path.realpath('/proc/self/exe')}\nimport json, os, sys, time\n{text}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def test_first_picture_that_a_phone_takes_decides(self, stage: Stage) -> None:
        owner = next(iter(stage.people.phones))
        refused, taken = (str(path) for path in stage.people.probes(owner))
        self.stand_in(
            stage,
            "mien-device",
            f"""
if {refused!r} in sys.argv:
    print('{{"decision": "multiple_faces", "message": "two faces"}}')
    sys.exit(12)
print('{{"decision": "unknown", "score": 0.1, "threshold": 0.5}}')
sys.exit(1)""",
        )
        assert run._decided(stage, owner, [Path(refused), Path(taken)], 0.01)["score"] == 0.1
        with pytest.raises(LowQualityError, match="none of the pictures to verify with: two faces; two faces"):
            run._decided(stage, owner, [Path(refused)] * 2, 0.01)

    def start_phones(self, stage: Stage, text: str) -> None:
        self.stand_in(stage, "python", text)
        for name in stage.people.phones:
            stage.programs.start(f"phone-{name}", "python", "-m", "simulation.demo.phone")

    def test_phone_that_ends_by_itself_is_told(self, stage: Stage) -> None:
        self.start_phones(stage, "print('there is nobody to train on'); sys.exit(2)")
        self.stand_in(stage, "mien-coordinator", f"print(json.dumps({EVENT!r}), flush=True); time.sleep(600)")
        with pytest.raises(UnreachableError, match=r"phone-.*exit code 2.*nobody to train on"):
            run.take_part(stage, "t")

    @pytest.mark.parametrize(
        ("state", "says"), [("paused", "the task is paused: no phones"), ("completed", "before its 1 round;")]
    )
    def test_task_that_does_not_end_well(self, stage: Stage, state: str, says: str) -> None:
        event = {"task": {**EVENT["task"], "state": state, "reason": "no phones"}, "round": None}  # type: ignore[dict-item]
        self.start_phones(stage, "time.sleep(600)")
        self.stand_in(stage, "mien-coordinator", f"print(json.dumps({event!r}))")
        with pytest.raises(LateError, match=says):
            run.take_part(stage, "t")

    @pytest.mark.parametrize(("number", "attempt", "fetched"), [(1, 1, 0), (2, 1, 4), (2, 2, 0), (3, 1, 4)])
    def test_bytes_down_are_of_models_that_were_new(
        self, stage: Stage, number: int, attempt: int, fetched: int
    ) -> None:
        model = untrained_model()
        stage = dataclasses.replace(stage, task=dataclasses.replace(stage.task, trainable=("embedding.*",)))
        report = {
            "round": number, "attempt": attempt, "stage": "aborted", "reason": "quorum", "num_selected": 4,
            "num_reports": 1, "upload_bytes": 77, "started_unix_ms": 1000, "ended_unix_ms": 3500,
        }  # fmt: skip
        cost = outcome._round_cost(stage, report, None, model, model, 0.1)  # type: ignore[arg-type]
        trained = sum(entry.size for entry in model.layout.entries if entry.name.startswith("embedding."))
        assert 0 < trained < model.layout.size
        assert cost.bytes_down == fetched * 4 * trained
        assert (cost.bytes_up, cost.duration_s, cost.outcome, cost.eer) == (77, 2.5, "quorum", None)

    def test_pictures_are_shown_not_copied(self, stage: Stage) -> None:
        run._link(stage.people.owners, stage.folder / "linked")
        linked = find_people(stage.folder / "linked")
        assert digest(linked) == digest(stage.people.owners)
        assert all(path.is_symlink() for files in linked.values() for path in files)


def test_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/mien-sim", "demo", "--faces", "my faces"])
    assert provenance.command("mien-sim") == "mien-sim demo --faces 'my faces'"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"size": 10, "min_reports": 4}, "size 10, min_reports 4"),
        ({"public": {"images": 20, "scale": 4.0}}, "public (images 20, scale 4.0)"),
        (["block13.*", "embedding.*"], "block13.*, embedding.*"),
        ([], "none"),
        ({}, "none"),
        ("fedface", "fedface"),
    ],
)
def test_settings_are_told_in_words(value: object, words: str) -> None:
    assert outcome._in_words(value) == words
