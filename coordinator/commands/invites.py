"""An invite as an operator hands it on: a QR code, the same as a line, and the fingerprints that a phone shows.

Whoever can change an invite on its way can also change the fingerprints within; read out to the person, they tell.
"""

from __future__ import annotations

from datetime import UTC, datetime

from coordinator.commands.common import say
from mien.format import grouped
from mien.protocol.invite import Invite
from mien.shell import cli as shell


def fingerprints(url: str) -> dict[str, str]:
    """Return the SHA-256 of both authorities in an invite, in groups as a phone shows them before it joins."""
    invite = Invite.from_url(url)
    return {"registrar": grouped(invite.registrar_ca_sha256), "coordinator": grouped(invite.coordinator_ca_sha256)}


def draw_invite(url: str, expires_unix_s: int) -> None:
    """Print an invite for people."""
    import segno

    segno.make(url, micro=False).terminal(compact=True)
    shell.OUT.out(url, highlight=False)  # unwrapped: a wrapped URL could not be copied
    say(f"Works once, until {datetime.fromtimestamp(expires_unix_s, UTC):%Y-%m-%d %H:%M} UTC. Show it to one person.")
    say("The app shows two fingerprints before it joins. Tell the person by another way, such as a call:")
    for name, text in fingerprints(url).items():
        say(f"  {name:<11}  {text}")
