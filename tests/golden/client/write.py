"""Write the vectors: `python -m tests.golden.client.write`, after a change that phones have to follow."""

from __future__ import annotations

from pathlib import Path

from tests.golden.client._vectors import FILES
from tests.golden.writing import VectorFiles

FOLDER = Path(__file__).parent
VECTORS = VectorFiles(FOLDER, FILES)
text_of = VECTORS.text_of

if __name__ == "__main__":
    VECTORS.write()
