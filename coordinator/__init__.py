"""The servers: the registrar that admits devices, and the coordinator that runs rounds.

What they offer others are their programs and the protocol in `proto/`; every module here is inner.

Both speak TLS 1.3 only, and log in one form. Both have to be settled before gRPC is loaded, so they are settled here.
"""

import os

from mien.shell.tls import refuse_tls12

__all__: list[str] = []

refuse_tls12()
# gRPC's own notes, such as every failed handshake, would stand between our lines of JSON; set it to INFO to see them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
