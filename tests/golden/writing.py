"""Files of vectors in a folder: what each has to hold, and writing them anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class VectorFiles:
    """Files by name, each with what makes its content."""

    folder: Path
    makers: Mapping[str, Callable[[], object]]

    def text_of(self, name: str) -> str:
        """Return the text of a vector file, made anew."""
        return json.dumps(self.makers[name](), indent=1) + "\n"

    def write(self) -> None:
        """Write every file."""
        for name in self.makers:
            (self.folder / name).write_text(self.text_of(name), encoding="utf-8")
            print(f"{name}: {(self.folder / name).stat().st_size} bytes")
