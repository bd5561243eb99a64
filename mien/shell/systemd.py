"""Notices to systemd of a service's state (its `sd_notify` protocol); none where nobody asked."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send a state, such as ``READY=1`` or ``STOPPING=1``, to the service manager that started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.sendall(state.encode())
