"""The servers: the registrar that admits devices, and the coordinator that runs rounds.

Both speak TLS 1.3 only. That has to be settled before gRPC is loaded, so it is settled here.
"""

from mien.shell.tls import refuse_tls12

refuse_tls12()
