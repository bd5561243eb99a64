"""Mien: federated face recognition in which no face leaves a phone, and no embedding unless its owner agreed.

This package computes: outside `mien.shell` it opens no socket or file and reads no clock. `coordinator`, `device_sdk`
and `simulation` act. The names here are what others may build on: descriptions of tasks and models, methods and what
they are made of, layouts, and errors. All other modules are inner: they change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mien._door import door

if TYPE_CHECKING:
    from mien.contribution import ContributionLayout, Lane
    from mien.errors import MienError
    from mien.layout import ParameterLayout
    from mien.methods import METHODS, find_method
    from mien.methods.base import Method
    from mien.specs import FaceInputSpec, ModelSpec, PrivacySpec, TaskSpec

__all__ = [
    "METHODS",
    "ContributionLayout",
    "FaceInputSpec",
    "Lane",
    "Method",
    "MienError",
    "ModelSpec",
    "ParameterLayout",
    "PrivacySpec",
    "TaskSpec",
    "find_method",
]

_HOMES: Final = {
    **dict.fromkeys(("ContributionLayout", "Lane"), "contribution"),
    "MienError": "errors",
    "ParameterLayout": "layout",
    **dict.fromkeys(("METHODS", "find_method"), "methods"),
    "Method": "methods.base",
    **dict.fromkeys(("FaceInputSpec", "ModelSpec", "PrivacySpec", "TaskSpec"), "specs"),
}

__getattr__, __dir__ = door(__name__, _HOMES)
