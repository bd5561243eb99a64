"""Asking a further witness for its cosignature, over HTTP as C2SP's tlog-witness has it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Final

from mien.errors import TransparencyError, UnreachableError
from mien.log.checkpoints import MAX_NOTE_BYTES
from mien.log.witnesses import AddCheckpoint, WitnessAddress

TIMEOUT_S: Final = 5.0
OTHER_SIZE: Final = 409
_SIZE_TYPE: Final = "text/x.tlog.size"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A witness answers where the setting says; a redirect of a POST would come as a GET elsewhere."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


def add_checkpoint(witness: WitnessAddress, asked: AddCheckpoint, *, timeout_s: float = TIMEOUT_S) -> bytes | int:
    """Return the witness's signature lines, not checked, or the size that it signed last, to ask again from there.

    Blocks; call it in a thread. Raises UnreachableError where no witness answers, TransparencyError for a refusal.
    """
    request = urllib.request.Request(f"{witness.url}/add-checkpoint", asked.to_bytes(), method="POST")  # noqa: S310
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            read: bytes = answer.read(MAX_NOTE_BYTES)
            return read
    except urllib.error.HTTPError as refused:
        return _other_size(refused, witness)
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(
            f"the witness {witness.key.name} does not answer at {witness.url}; start it, or correct its address"
        ) from error


def _other_size(refused: urllib.error.HTTPError, witness: WitnessAddress) -> int:
    with refused:
        told = refused.read(1024).decode(errors="replace").strip()
        if refused.code == OTHER_SIZE and refused.headers.get_content_type() == _SIZE_TYPE and told.isdecimal():
            return int(told[:16])
    raise TransparencyError(
        f"the witness {witness.key.name} did not cosign the log (HTTP {refused.code}); ask who runs it"
    ) from None
