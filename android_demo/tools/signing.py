"""Signing an APK: with a key that is thrown away, or with one that its owner keeps outside the repository."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from building import DEMO, OUT, run

FROM = "MIEN_KEYSTORE_PASSWORD"
SHORTEST = 6
ALIAS = "demo"


def prepare(keystore: Path | None) -> Path:
    """Return the PKCS12 file to sign with, made where there is none; ends the program where it cannot be used.

    Its password comes from the environment, so that no list of processes shows it. None: a key for this build alone.
    """
    if keystore is None:
        store = OUT / "throw-away.p12"
        store.unlink(missing_ok=True)
        os.environ[FROM] = secrets.token_hex(16)
    else:
        store = keystore.resolve()
        check(store)
    opened = ("-keystore", store, "-storepass:env", FROM, "-alias", ALIAS)
    if store.is_file():
        run("keytool", "keytool", "-list", *opened)
        return store
    kind = ("-keyalg", "EC", "-groupname", "secp256r1", "-storetype", "PKCS12")
    before = os.umask(0o077)
    run("keytool", "keytool", "-genkeypair", *opened, "-dname", "CN=Mien demo", "-validity", "10000", *kind)
    os.umask(before)
    return store


def check(store: Path) -> None:
    """End the program where a key would lie in the repository or its password is missing."""
    if store.is_relative_to(DEMO.parent):
        sys.exit(f"{store} is in the repository: keep a signing key outside of it")
    if not store.parent.is_dir():
        sys.exit(f"{store.parent} is no folder: make it first")
    if len(os.environ.get(FROM, "")) < SHORTEST:
        sys.exit(f"set {FROM} to the password of {store}: {SHORTEST} characters or more")


def sign(apk: Path, unsigned: str, store: Path) -> None:
    """Sign (schemes 2 and 3) what lies in tools/target."""
    key = ("--ks", store, "--ks-key-alias", ALIAS, "--ks-pass", f"env:{FROM}")
    run("apksigner sign", "apksigner", "sign", *key, "--min-sdk-version", "29", "--out", apk, unsigned)
