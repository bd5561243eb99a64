"""What the builds share: running tools, shrinking, taking lambdas out, dexing, zips of the same bytes each time."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

DEMO = Path(__file__).resolve().parents[1]
OUT = DEMO / "tools" / "target"
JARS = OUT / "jars"
LIBRARY = OUT / "mien-client.aar"
CONSUMER_RULES = DEMO / "client" / "src" / "main" / "resources" / "META-INF" / "proguard" / "mien-client.pro"
# Reached by name alone, whatever an app does with the client: gRPC's transport and ONNX Runtime's classes.
REACHED = ("io/grpc/okhttp/OkHttpChannelProvider.class", "ai/onnxruntime/OrtSession.class")
# The client's tests name all of it; an app names what it uses.
KEEP_ALL_OF_MIEN = "-keep class mien.client.** { *; }\n-keep class mien.e2e.** { *; }\n-keep class mien.v1.** { *; }"
NEVER_CHANGES = (1980, 1, 1, 0, 0, 0)
# ONNX Runtime for the JVM would report to its maker what the tests run, and overflow its stack on a long command line.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def run(what: str, *command: object) -> str:
    """Return what a command printed; ends the program where it failed."""
    began = time.monotonic()
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, errors="replace", cwd=OUT, check=False
    )
    if done.returncode:
        # Each by itself: what a test run says of its failures must not be lost behind what programs log meanwhile.
        sys.exit(f"{what} failed:\n{done.stderr[-4000:]}\n{done.stdout[-4000:]}")
    sys.stdout.write(f"{what}: {time.monotonic() - began:.0f} s\n")
    sys.stdout.flush()
    return done.stdout


def java(*arguments: object) -> list[object]:
    return ["java", "-Xmx1g", "-XX:+UseSerialGC", "-cp", f"{JARS}/*", *arguments]


def runtime() -> tuple[list[str], list[str]]:
    """Return the jars that the app is made of beside its own code, and ONNX Runtime's for the JVM."""
    jars = (DEMO / "app" / "target" / "classpath.txt").read_text().split(":")
    beside = [jar for jar in jars if Path(jar).name.startswith("onnxruntime-")]
    # Annotations for compilers, which no program needs.
    needless = ("animal-sniffer", "error_prone", "j2objc", "jspecify", "annotations-", "jsr305", "listenable", "mien-")
    return [jar for jar in jars if jar not in beside and not Path(jar).name.startswith(needless)], beside


def proguard(source: list[str], target: Path, beside: list[str], *rules: str) -> None:
    """Run ProGuard with a complete library of Java behind it: without one it strips what lambdas call."""
    home = Path(shutil.which("java") or "").resolve().parents[1]
    android = next(JARS.glob("android-all-*.jar"))
    unsigned = "(!META-INF/versions/**,!META-INF/*.SF,!META-INF/*.RSA,!module-info.class)"
    lines = [f"-injars '{jar}'{unsigned}" for jar in source]
    lines += [f"-outjars '{target}'"]
    modules = [f"{home}/jmods/{name}.jmod" for name in ("java.base", "java.logging")]
    lines += [f"-libraryjars '{module}'(!**.jar;!module-info.class)" for module in modules]
    lines += [f"-libraryjars '{jar}'" for jar in beside]
    lines += [f"-libraryjars '{android}'(!java/**,!javax/**)", *rules]
    script = target.with_suffix(".pro")
    script.write_text("\n".join(lines) + "\n")
    run(f"ProGuard ({target.stem})", *java("proguard.ProGuard", f"@{script}"))


def prepare() -> None:
    """Fetch the tools; ends the program where the client is not built."""
    if not (DEMO / "app" / "target" / "classpath.txt").is_file():
        sys.exit("build the client first: mvn -B -q -T1 package in android_demo")
    OUT.mkdir(exist_ok=True)
    run("Tools", "mvn", "-B", "-q", "-T1", "-f", DEMO / "tools" / "pom.xml", "package")


def zipped(target: Path | io.BytesIO, entries: dict[str, bytes], stored: tuple[str, ...] = ()) -> None:
    """Write a zip whose order and times never change; what is in `stored` is not compressed."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, NEVER_CHANGES)
            info.compress_type = zipfile.ZIP_STORED if name in stored else zipfile.ZIP_DEFLATED
            archive.writestr(info, entries[name])


def classes_of(*modules: tuple[str, str]) -> list[str]:
    """Return folders of compiled classes, by module and kind."""
    return [str(DEMO / name / "target" / kind) for name, kind in modules]


def dex(source: list[str], beside: list[str], *more_rules: str, asked: Path = CONSUMER_RULES) -> Path:
    """Return classes.dex of jars and folders of classes, shrunk by what the client asks of apps and by more rules.

    Ends the program if a lambda was left in.
    """
    rules = "".join(path.read_text() for path in (asked, DEMO / "tools" / "shrink.pro"))
    # In two steps: taking lambdas out of all of a library, before what is not used is gone, fails.
    proguard(source, OUT / "shrunk.jar", beside, rules, *more_rules)
    keep_all = ("-target 1.7", "-dontshrink", "-keep class ** { *; }")
    proguard([str(OUT / "shrunk.jar")], OUT / "plain.jar", beside, rules, *keep_all)
    options = ("--dex", "--min-sdk-version=26", "--output=classes.dex")
    run("dx", *java("com.android.dx.command.Main", *options, "plain.jar"))
    if "invoke-custom" in run("dexdump", "dexdump", "-d", "classes.dex"):
        sys.exit("classes.dex makes lambdas when it runs, for which dx writes what Android cannot run")
    return OUT / "classes.dex"


def require_reached(libraries: list[str]) -> set[str]:
    """Return the names of what shrinking left; ends the program where that lacks what the client reaches by name."""
    with zipfile.ZipFile(OUT / "plain.jar") as plain:
        names = set(plain.namelist())
    missing = [name for name in REACHED if name not in names]
    if missing or not any("ManagedChannelProvider" in name for name in services(libraries)):
        sys.exit(f"the client's rules let go of what it reaches by name: {', '.join(missing) or 'its services'}")
    return names


def methods(code: Path) -> int:
    """Return how many methods a classes.dex defines or calls, by its header; one such file holds 65,536."""
    return int.from_bytes(code.read_bytes()[0x58:0x5C], "little")


def junit(what: str, start: list[object], classpath: list[str]) -> str:
    """Run the client's unit tests by a Java that starts so; returns JUnit's count of those that passed."""
    libraries = [str(jar) for name in ("junit-*", "hamcrest-*") for jar in sorted(JARS.glob(f"{name}.jar"))]
    root = DEMO / "client" / "src" / "test" / "java"
    tests = [".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(root.rglob("*Test.java"))]
    options = ("-Xmx1g", f"-Dmien.tests={DEMO.parent / 'tests'}", "-cp", ":".join([*classpath, *libraries]))
    told = run(what, *start, *options, "org.junit.runner.JUnitCore", *tests)
    return next(line for line in told.splitlines() if line.startswith("OK"))


def services(jars: list[str]) -> dict[str, bytes]:
    """Return what libraries look up by name (META-INF/services), merged over jars; classes that were shrunk away are
    left out. ProGuard keeps the first jar's list alone.
    """
    with zipfile.ZipFile(OUT / "plain.jar") as plain:
        there = {name.removesuffix(".class").replace("/", ".") for name in plain.namelist()}
    found: dict[str, list[str]] = {}
    for each in jars:
        if not each.endswith(".jar"):
            continue
        with zipfile.ZipFile(each) as jar:
            for name in jar.namelist():
                if name.startswith("META-INF/services/") and not name.endswith("/"):
                    lines = jar.read(name).decode().splitlines()
                    found.setdefault(name, []).extend(line for line in lines if line.strip() in there)
    return {name: ("\n".join(lines) + "\n").encode() for name, lines in sorted(found.items()) if lines}
