"""What runs a model on this device: one small interface (`mien.methods.base.Runtime`), several engines behind it.

Imports nothing heavy: an engine is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib.util

from mien.errors import MissingDependencyError
from mien.layout import ParameterLayout
from mien.methods.base import Runtime
from mien.specs import ModelSpec


def load_runtime(spec: ModelSpec, layout: ParameterLayout, *, threads: int = 1) -> Runtime:
    """Return a runtime for a model of that backbone and layout.

    Raises MissingDependencyError when no engine is installed, LayoutMismatchError when this program's backbone of that
    name has another layout than the model.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError(
            "no engine to run the recogniser: install the train extra (pip install mien[train])"
        )
    from device_sdk.runtimes.torch_runtime import TorchRuntime

    return TorchRuntime(spec, layout, threads=threads)
