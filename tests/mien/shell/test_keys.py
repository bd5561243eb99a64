"""Keys, nonces, salts and tokens come from one seam, and no module outside it draws any."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from mien.shell import keys
from tests.test_house import PACKAGES, modules

SEAM = "mien.shell.keys"
DRAWS = {"urandom", "getrandom", "token_bytes", "token_hex", "token_urlsafe", "randbits", "SystemRandom"}
"""What draws secrets, or would, of `os`, `secrets` and `random`."""

MAKES_KEYS = {"generate_private_key", "generate_key"}
KEY_CLASSES = {"Ed25519PrivateKey", "X25519PrivateKey", "MLKEM768PrivateKey", "Fernet", "AESGCM", "ChaCha20Poly1305"}
BYTES_OF_SEEDED = {"simulation.papers.leakage.embeddings", "simulation.papers.leakage.updates"}
"""May draw bytes of a seeded generator: the attacks play both sides of a round that must come out the same again."""


def draws(source: str, *, may_seed: bool = False) -> list[str]:
    """Return what a module calls or names that makes keys, nonces or tokens without the seam."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "secrets", "random"):
            found += [alias.name for alias in node.names if alias.name in DRAWS]
        elif isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            is_key = node.attr in MAKES_KEYS or (node.attr == "generate" and of in KEY_CLASSES)
            is_seeded = node.attr in ("bytes", "randbytes") and not may_seed
            if node.attr in DRAWS or is_key or is_seeded:
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_but_the_seam_draws_secrets(package: str) -> None:
    broken = [
        f"{name} uses {call}: take it from {SEAM}"
        for name, path in modules(package)
        if name != SEAM
        for call in draws(path.read_text(encoding="utf-8"), may_seed=name in BYTES_OF_SEEDED)
    ]
    assert not broken


@pytest.mark.parametrize(
    "line",
    [
        "key = os.urandom(32)",
        "from secrets import token_bytes",
        "token = secrets.token_hex(8)",
        "key = AESGCM.generate_key(256)",
        "key = ec.generate_private_key(ec.SECP256R1())",
        "key = Ed25519PrivateKey.generate()",
        "key = np.random.default_rng().bytes(32)",
        "key = rng.randbytes(32)",
        "rng = random.SystemRandom()",
    ],
)
def test_drawing_past_the_seam_is_found(line: str) -> None:
    assert draws(line)


def test_modules_that_may_draw_seeded_bytes_do() -> None:
    """An entry that is of no use any more would hide the next one."""
    paths = {name: path for package in PACKAGES for name, path in modules(package)}
    assert all(draws(Path(paths[name]).read_text(encoding="utf-8")) for name in BYTES_OF_SEEDED)


def test_secrets_have_their_lengths_and_ignore_the_seed() -> None:
    random.seed(7)
    first = keys.secret_bytes(32), keys.secret_hex(16), keys.secret_text(32)
    random.seed(7)
    second = keys.secret_bytes(32), keys.secret_hex(16), keys.secret_text(32)
    assert [len(each) for each in first] == [32, 32, 43]
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_key_pairs_are_new_and_of_their_kind() -> None:
    one, other = keys.p256_key(), keys.p256_key()
    assert one.curve.name == "secp256r1"
    assert one.private_numbers() != other.private_numbers()
    assert keys.ed25519_key().private_bytes_raw() != keys.ed25519_key().private_bytes_raw()
