"""Every method by the name under which a task asks for it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mien.errors import ConfigError
from mien.methods.base import Method
from mien.methods.fedavg import FEDAVG
from mien.methods.fedaws import FEDAWS
from mien.methods.federated_evaluation import FEDERATED_EVALUATION
from mien.methods.fedface_private import FEDFACE
from mien.methods.fedfr import FEDFR
from mien.methods.fedfr_uda import FEDFR_UDA
from mien.methods.fedgc import FEDGC
from mien.methods.fedprox import FEDPROX
from mien.methods.fixed_embedding import FIXED_EMBEDDING
from mien.methods.mime import MIME
from mien.methods.pfm_fv import PFM_FV
from mien.methods.scaffold import SCAFFOLD
from mien.methods.statistics import STATISTICS

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: method
        for method in (
            FEDAVG,
            FEDAWS,
            FEDFACE,
            FEDGC,
            FEDFR,
            FEDFR_UDA,
            FIXED_EMBEDDING,
            FEDPROX,
            MIME,
            PFM_FV,
            SCAFFOLD,
            STATISTICS,
            FEDERATED_EVALUATION,
        )
    }
)


def find_method(name: str) -> Method:
    """Return the method of that name; raises ConfigError naming the nearest one."""
    method = METHODS.get(name)
    if method is None:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known methods: {', '.join(METHODS)}"
        raise ConfigError(f"method is {name!r}, which is unknown; {hint}")
    return method
