"""The monitor as anybody runs it: over HTTP or from a folder, remembering what it saw."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mien.errors import CorruptDataError, TransparencyError, UnreachableError
from simulation.program.cli import app
from simulation.program.monitoring import look
from tests.mien.log.test_monitor import HONEST, SIGNER, note


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def written(folder: Path, entries: list[bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "key").write_text(f"{SIGNER.key}\n")
    (folder / "checkpoint").write_text(note(entries))
    (folder / "entries.jsonl").write_text("".join(json.dumps(each.decode()) + "\n" for each in entries))
    return folder


def test_a_log_that_grows_is_followed_over_http(tmp_path: Path) -> None:
    log, state = written(tmp_path / "log", HONEST[:5]), tmp_path / "state.json"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(log)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        assert look(url, state=state).faults == ()
        written(log, HONEST)
        assert look(url, state=state).checkpoint.size == len(HONEST)
        written(log, [*HONEST[:4], *HONEST[5:]])
        result = CliRunner().invoke(app, ["log-monitor", url, "--state", str(state), "--json"])
        assert result.exit_code == 47
        assert any("it was cut, or forked" in fault for fault in json.loads(result.stdout)["faults"])
        written(log, HONEST)  # what was remembered is the honest log's still
        assert look(url, state=state).faults == ()
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(UnreachableError, match="gives no key of a log"):
        look(url)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="key is missing"):
        look(str(tmp_path))
    log = written(tmp_path / "log", HONEST)
    (log / "entries.jsonl").write_text("{}\n")
    with pytest.raises(TransparencyError, match="a line that is none"):
        look(str(log))


def test_a_log_begun_anew_is_told(tmp_path: Path) -> None:
    log, state = written(tmp_path / "log", HONEST), tmp_path / "state.json"
    state.write_text(json.dumps({"key": "another", "note": note(HONEST)}))
    with pytest.raises(TransparencyError, match="begun anew"):
        look(str(log), state=state)


def test_a_look_without_a_witness_says_that_no_cosignature_was_checked(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["log-monitor", str(written(tmp_path / "log", HONEST))])
    assert result.exit_code == 0
    assert "Nobody's cosignature was checked: give --witness" in result.stdout
