"""The servers: the registrar that admits devices, and the coordinator that runs rounds.

What they offer others are their programs, the protocol in `proto/`, and the names here: an operator's calls to either
server, their folders and settings, and a coordinator in a process of one's own. All other modules are inner: they
change without notice.

Both speak TLS 1.3 only, and log in one form. Both have to be settled before gRPC is loaded, so they are settled here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from mien._door import door
from mien.shell.tls import refuse_tls12

if TYPE_CHECKING:
    from coordinator.home.config import CoordinatorConfig
    from coordinator.home.home import CoordinatorHome
    from coordinator.keys.credentials import OperatorCredentials
    from coordinator.operator.client import Coordinator, connect
    from coordinator.operator.registrar_client import RegistrarAdmin, connect_admin
    from coordinator.registrar.config import RegistrarConfig
    from coordinator.registrar.home import RegistrarHome
    from coordinator.serve import running

__all__ = [
    "Coordinator",
    "CoordinatorConfig",
    "CoordinatorHome",
    "OperatorCredentials",
    "RegistrarAdmin",
    "RegistrarConfig",
    "RegistrarHome",
    "connect",
    "connect_admin",
    "running",
]

refuse_tls12()
# gRPC's own notes, such as every failed handshake, would stand between our lines of JSON; set it to INFO to see them.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

_HOMES: Final = {
    "CoordinatorConfig": "home.config",
    "CoordinatorHome": "home.home",
    "OperatorCredentials": "keys.credentials",
    **dict.fromkeys(("Coordinator", "connect"), "operator.client"),
    **dict.fromkeys(("RegistrarAdmin", "connect_admin"), "operator.registrar_client"),
    "RegistrarConfig": "registrar.config",
    "RegistrarHome": "registrar.home",
    "running": "serve",
}

__getattr__, __dir__ = door(__name__, _HOMES)
