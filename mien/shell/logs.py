"""Structured logs without secrets: JSON lines for machines, one readable line for people."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

_SECRET_WORDS: Final = ("token", "key", "secret", "password", "embedding", "crop", "theta", "template", "vector")


def mask_secrets(_logger: object, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the value of every field whose name suggests a secret or biometric data, and all raw bytes."""
    for name, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[name] = f"<{len(value)} bytes>"
        elif name != "event" and any(word in name.lower() for word in _SECRET_WORDS) and not isinstance(value, int):
            event[name] = "***"
    return event


def configure(*, as_json: bool) -> None:
    """Set up logging to stderr for a program."""
    import structlog  # a fifth of the start of a command that logs nothing

    renderer: Any = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            mask_secrets,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
