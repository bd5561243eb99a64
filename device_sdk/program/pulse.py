"""A sign of life while nothing happens: a program that waits for hours must not look like one that hangs."""

from __future__ import annotations

import threading
import time
from typing import Final

from device_sdk.rounds.events import Event, Listener, Transfer
from mien.format import spell_duration

EVERY_S: Final = 60.0


class Pulse:
    """A listener that passes everything on and, in a `with` block, reports silence once a minute.

    It says so from a thread of its own.
    """

    def __init__(self, tell: Listener, *, every_s: float = EVERY_S) -> None:
        self._tell, self._every_s = tell, every_s
        self._last, self._last_s, self._beat_s = "started", time.monotonic(), time.monotonic()
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def __call__(self, event: Event | Transfer) -> None:
        """Pass an event on; it is a sign of life itself, but for progress, which is not shown everywhere."""
        with self._lock:
            self._last = event.text if isinstance(event, Event) else f"{event.what}: {event.done_bytes / 1e6:.1f} MB"
            if not isinstance(event, Event) or event.kind != "progress":
                self._last_s = self._beat_s = time.monotonic()
        self._tell(event)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(max(0.0, self._beat_s + self._every_s - time.monotonic())):
            with self._lock:
                now = time.monotonic()
                if now < self._beat_s + self._every_s:
                    continue
                self._beat_s, idle_s, last = now, now - self._last_s, self._last
            text = f"Nothing new for {spell_duration(idle_s)}; the last was: {last}"
            self._tell(Event("alive", text, {"idle_s": round(idle_s, 1)}))
