"""Report of a cluster worker's end: an exception that it raised, or the end of its error log.

A worker that has not answered yet holds no phone's model, and what it says is cut to one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ray._private import worker as ray_worker
from ray.exceptions import RayActorError, RayError, RayTaskError

from mien.errors import UnavailableError

MAX_CHARACTERS: Final = 300
_MAX_LOG_BYTES: Final = 64 << 10
_PID: Final = re.compile(r"^\s*pid: (\d+)", re.MULTILINE)
_EXIT: Final = re.compile(r"Worker exit type: (\w+)")
_CRASH: Final = "Fatal Python error"
_FRAME: Final = re.compile(r"\s+File \S")


def does_not_start(error: RayError) -> UnavailableError:
    """Return the error of workers that ended before they had ever answered: it is not the phones that end them."""
    words = last_words(error)
    said = f"its last words: {words}" if words else f"it said nothing ({type(error).__name__})"
    return UnavailableError(
        f"a worker of the cluster does not start; {said}. Look for what ends it on its machine: a missing module, "
        "another version of Mien, or too little memory for the model"
    )


def raised_at_start(error: RayError) -> bool:
    """Return whether a worker ended by an exception in its beginning, which another one would raise too."""
    return isinstance(error, RayTaskError) or (isinstance(error, RayActorError) and error.actor_init_failed)


def last_words(error: RayError) -> str:
    """Return the last thing that a worker said, on one line; empty where nothing is known.

    That is the first line of the exception that ended it, else what its error log tells of the end, which lies on this
    machine for a worker on it, else the kind of end that Ray has noted.
    """
    text = str(error)
    if raised_at_start(error):
        return end_of(text.splitlines())
    if (pid := _PID.search(text)) and (line := end_of(_error_log(int(pid[1])))):
        return line
    ended = _EXIT.search(text)
    return f"worker exit type {ended[1]}" if ended else ""


def _error_log(pid: int) -> list[str]:
    """Return the last lines of a local worker's error log."""
    node: Any = ray_worker._global_node
    if node is None:
        return []
    for path in Path(node.get_logs_dir_path()).glob(f"worker-*-{pid}.err"):
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _MAX_LOG_BYTES))
            return log.read().decode("utf-8", "replace").splitlines()
    return []


def end_of(lines: Sequence[str]) -> str:
    """Return the line that names what ended a program: the crash, the exception under the last frame, else the last.

    A crash is followed by stacks and modules, and an exception by the rest of its message. Only printable characters.
    """
    said = [line.rstrip() for line in lines if line.strip() and not line.startswith(":")]  # Ray's own marks
    crash = next((line for line in reversed(said) if line.startswith(_CRASH)), "")
    frame = max((number for number, line in enumerate(said) if _FRAME.match(line)), default=-1)
    raised = next((line for line in said[frame + 1 :] if not line[0].isspace()), "") if frame >= 0 else ""
    found = crash or raised or (said[-1].strip() if said else "")
    return "".join(c if c.isprintable() else "?" for c in found[:MAX_CHARACTERS])
