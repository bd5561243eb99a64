"""ONNX Runtime's classes for the APK: those that the client's tests run with, shown to fit the native code for Android.

Maven's artifact for the JVM and Microsoft's archive for Android hold the same classes, compiled for Java 8 and for Java
17, of which ProGuard cannot make code for Android. The APK takes Maven's, and so none of those that only the archive
has: they report to Microsoft what an app runs.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

from building import OUT, run
from pinned import AAR, native_code, onnxruntime

ONLY_IN_ARCHIVE = re.compile(r"ai/onnxruntime/(BuildConfig|TelemetryInitializer|telemetry/.*)\.class")
_AS_C_WRITES_IT = str.maketrans({"_": "_1", "$": "_00024", ".": "_"})


def classes(maven: Path, abi: str) -> Path:
    """Return the jar of ONNX Runtime's classes for the APK; ends the program where the three parts do not fit."""
    android = OUT / "onnxruntime-archive.jar"
    with zipfile.ZipFile(onnxruntime() / AAR.name) as aar:
        android.write_bytes(aar.read("classes.jar"))
    ours, theirs = class_files(maven), class_files(android)
    extra = [name for name in theirs if name not in ours and not ONLY_IN_ARCHIVE.fullmatch(name)]
    if different := extra or sorted(ours.keys() - theirs.keys()):
        sys.exit(f"ONNX Runtime's archive has other classes than Maven's artifact: {different[:5]}")
    members = declared(maven, list(ours))
    differing = members ^ declared(android, list(ours))
    if differing:
        sys.exit(f"ONNX Runtime's archive and Maven's artifact declare different members: {sorted(differing)[:5]}")
    if natives := unlinked(members, abi):
        sys.exit(f"ONNX Runtime's native code for {abi} lacks methods that its classes call: {natives[:5]}")
    sys.stdout.write(f"ONNX Runtime: {len(ours)} classes, {len(members)} members, as in the archive for Android\n")
    target = OUT / "onnxruntime-android.jar"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, data in ours.items():
            jar.writestr(zipfile.ZipInfo(name), data)
    return target


def class_files(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as archive:
        return {name: archive.read(name) for name in sorted(archive.namelist()) if name.endswith(".class")}


def declared(jar: Path, names: list[str]) -> set[str]:
    """Return what classes declare, with types, as javap tells it: all that other code or native code can reach.

    Private members are left out unless they are native, and so are the accessors that older compilers add for them.
    """
    told = run(f"javap ({jar.name})", "javap", "-p", "-s", "-cp", jar, *(name.removesuffix(".class") for name in names))
    found, owner = set(), ""
    for head, descriptor in re.findall(r"^(\S.*\{|  \S.*;)$(?:\n    descriptor: (.*)$)?", told, re.MULTILINE):
        if head.endswith("{"):
            owner = head
            found.add(head)
        elif "access$" not in head and (" native " in head or not head.startswith("  private")):
            found.add(f"{owner} {head.strip()} {descriptor}")
    return found


def unlinked(members: set[str], abi: str) -> list[str]:
    """Return the native methods for which the native code has no function."""
    library = OUT / "libonnxruntime4j_jni.so"
    library.write_bytes(native_code(abi)[f"lib/{abi}/{library.name}"])
    functions = set(re.findall(r"\bJava_\w+", run("readelf", "readelf", "--dyn-syms", "-W", library)))
    wanted = []
    for member in members:
        if native := re.search(r"^\S*.*?class (\S+) .* native .*?(\w+)\(", member):
            wanted.append("Java_" + ".".join(native.groups()).translate(_AS_C_WRITES_IT))
    return [name for name in wanted if not any(each == name or each.startswith(f"{name}__") for each in functions)]
