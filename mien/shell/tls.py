"""TLS 1.3 and nothing older, in a library that has no setting for it."""

from __future__ import annotations

import os
from typing import Final

_NO_TLS12_SUITE: Final = "ECDHE-RSA-AES128-GCM-SHA256"


def refuse_tls12() -> None:
    """Make every gRPC server and channel of this process refuse TLS 1.2; of use only before `grpc` is first imported.

    gRPC for Python cannot name a minimum version. When it is loaded it reads from the environment the suites that
    TLS 1.2 may use; TLS 1.3 ignores that list. All of Mien's keys are P-256, so leaving only a suite that needs an RSA
    key leaves TLS 1.2 without any: such a handshake ends with "no shared cipher".
    """
    os.environ["GRPC_SSL_CIPHER_SUITES"] = _NO_TLS12_SUITE
