"""The phone of `android_demo` as a process: built by Maven, or the tests that need it are skipped saying so."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.helpers import ROOT

DEMO: Final = ROOT / "android_demo"
_CLASSES: Final = DEMO / "e2e" / "target" / "classes"
_CLASSPATH: Final = DEMO / "e2e" / "target" / "classpath.txt"


def _own_classpath() -> str:
    """Return the classpath that the environment names instead: code recovered from Android's (tools/dex_roundtrip)."""
    return os.environ.get("MIEN_PHONE_CLASSPATH", "")


def why_not() -> str:
    """Return what is missing to run the phone; empty where nothing is."""
    if shutil.which("java") is None:
        return "java is not installed (JDK 17)"
    if not _CLASSPATH.is_file() or not (_CLASSES / "mien" / "e2e" / "Phone.class").is_file():
        return "the phone is not built: mvn -B -q -T1 package in android_demo"
    missing = [jar for jar in _CLASSPATH.read_text().split(":") if not Path(jar).exists()]
    return f"a library of the phone is gone ({Path(missing[0]).name}): build android_demo again" if missing else ""


if _REASON := why_not():
    # Whoever imports this is skipped, before it imports what takes seconds.
    pytest.skip(_REASON, allow_module_level=True)


def command(
    main: str, *arguments: object, memory: Sequence[str] = ("-Xmx256m",), java: Sequence[str] = ("java",)
) -> list[str]:
    """Return how a class of the e2e module is run, with which limits of memory, and by which Java."""
    classpath = _own_classpath() or f"{_CLASSES}:{_CLASSPATH.read_text()}"
    return [
        *java,
        *memory,
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-cp",
        classpath,
        main,
        *map(str, arguments),
    ]


@dataclass(frozen=True)
class JvmPhone:
    """A phone that runs; `end` waits for it."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, java: Sequence[str] = ("java",), **options: object) -> JvmPhone:
        """Start a phone by this Java, with the options of `mien.e2e.Phone`, underscores for dashes."""
        arguments = [piece for name, value in options.items() for piece in (f"--{name.replace('_', '-')}", value)]
        process = subprocess.Popen(
            command("mien.e2e.Phone", *arguments, java=java), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return cls(process)

    def end(self, *, limit_s: float = 120.0) -> list[dict[str, Any]]:
        """Return what it told, once it is over; fails where it failed."""
        try:
            output, errors = self.process.communicate(timeout=limit_s)
        finally:
            self.process.kill()
        assert "Exception" not in errors, errors[-4000:]
        return [json.loads(line) for line in output.splitlines()]


class JvmDevice:
    """A phone of the JVM that does what it is told: each call is a command of `mien.e2e.Life`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process = subprocess.Popen(
            command("mien.e2e.Life", home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> JvmDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.communicate()

    def do(self, what: str, **told: Any) -> dict[str, Any]:
        """Return the answer to a command; fails where it is an error."""
        answer = self.answer(what, **told)
        assert "error" not in answer, answer
        return answer

    def ends(self, what: str, **told: Any) -> None:
        """Give a command, again while there is no work, that halts it in its midst, as a power cut would."""
        assert self._process.stdout is not None
        self.send(what, **told)
        while line := self._process.stdout.readline():
            assert json.loads(line)["kind"] == "WAIT", line
            self.send(what, **told)
        assert self._process.wait() == 9

    def refused(self, what: str, **told: Any) -> tuple[str, str]:
        """Return the code and the text of the error that a command is answered with."""
        answer = self.answer(what, **told)
        assert "error" in answer, answer
        return answer["error"], answer["text"]

    def answer(self, what: str, **told: Any) -> dict[str, Any]:
        """Return the answer to a command, whatever it is."""
        self.send(what, **told)
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def send(self, what: str, **told: Any) -> None:
        """Give a command and do not wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **told}) + "\n")
        self._process.stdin.flush()

    @contextlib.contextmanager
    def no_file_beyond(self, size_bytes: int) -> Iterator[None]:
        """Let it write no file beyond a size, as a disk with no more room would."""
        before = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, before)
