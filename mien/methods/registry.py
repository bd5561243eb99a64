"""Every method by the name under which a task asks for it: Mien's own, and those of packages installed beside it.

A package offers one by an entry point in the group `mien.methods`, NAME = "MODULE:METHOD".
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.metadata import entry_points
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

OUTSIDE_GROUP: Final = "mien.methods"
"""Entry points of methods that other packages bring."""

_OWN: Final = (
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
_known: Final = {method.name: method for method in _OWN}
_own_names: Final = frozenset(_known)
_broken: Final[dict[str, str]] = {}

METHODS: Final[Mapping[str, Method]] = MappingProxyType(_known)
"""Methods that this process knows; `enter` adds to them."""


def is_outside(method: Method) -> bool:
    """True for a method that is not Mien's own."""
    return method.name not in _own_names


def enter(method: Method) -> None:
    """Make a method known in this process; raises ConfigError where its name is another one's."""
    if not isinstance(method, Method):
        raise ConfigError(f"{method!r} is no mien.methods.base.Method; name a module's attribute that is one")
    if _known.setdefault(method.name, method) is not method:
        raise ConfigError(f"there is a method {method.name!r} already; give yours a name of its own")


def find_method(name: str) -> Method:
    """Return the method of that name; raises ConfigError naming the nearest one."""
    method = METHODS.get(name)
    if method is None:
        if name in _broken:
            raise ConfigError(f"method {name!r} is installed and cannot be loaded: {_broken[name]}")
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known methods: {', '.join(METHODS)}"
        raise ConfigError(f"method is {name!r}, which is unknown; {hint}")
    return method


def _enter_installed() -> None:
    """Enter what other packages bring; one that fails is told when a task asks for it, and keeps nobody from theirs."""
    for point in entry_points(group=OUTSIDE_GROUP):
        try:
            method = point.load()
            enter(method)
            if method.name != point.name:
                _broken[point.name] = f"its name is {method.name!r}; name the entry point so"
        except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything
            _broken[point.name] = f"{type(error).__name__}: {error}"


_enter_installed()
