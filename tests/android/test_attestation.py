"""A phone of the JVM joins a registrar that admits attested keys only, over TLS: made-up chains, the real policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_der_public_key

from tests.android.jvm import JvmDevice
from tests.coordinator.registrar.attestation.phones import APP, Maker
from tests.coordinator.registrar.attestation.test_policy import listed
from tests.coordinator.registrar.running import CONFIG, LocalRegistrar, local_registrar

pytestmark = pytest.mark.slow
MAKER = Maker.new()


@pytest.fixture
def registrar(tmp_path: Path) -> Iterator[LocalRegistrar]:
    """A registrar that requires what a made-up maker attests, of one app."""
    folder = tmp_path / "R"
    folder.mkdir(mode=0o700)
    (folder / "roots.pem").write_bytes(MAKER.root.certificate.public_bytes(Encoding.PEM))
    config = dataclasses.replace(
        CONFIG,
        attestation="require",
        attestation_roots=("roots.pem",),
        attestation_apps=(APP.hex(),),
        max_join_failures=1000,
    )
    with local_registrar(folder, config) as running:
        yield running


def url(registrar: LocalRegistrar) -> str:
    """Return an invite to the port on which the registrar really listens."""
    return dataclasses.replace(registrar.invite(), registrar_address=registrar.join_address).to_url()


def attested(phone: JvmDevice, invite: str, maker: Maker = MAKER, *, of_invite: str = "", **lies: object) -> None:
    """Have a phone's hardware attest the key that it joins with, for an invite."""
    key = load_der_public_key(bytes.fromhex(phone.do("attest", invite=invite)["key"]))
    challenge = bytes.fromhex(phone.do("attest", invite=of_invite or invite)["challenge"])
    assert isinstance(key, ec.EllipticCurvePublicKey)
    chain = maker.chain_of(key, challenge, **lies)
    phone.do("attest", invite=invite, chain=[certificate.hex() for certificate in chain])


def test_a_phone_joins_by_what_its_hardware_attests_and_by_nothing_less(
    registrar: LocalRegistrar, tmp_path: Path
) -> None:
    invite = url(registrar)
    with JvmDevice(tmp_path / "home") as phone:
        code, text = phone.refused("join", invite=invite)
        assert (code, "attests nothing of its key" in text, "as good as before" in text) == ("not_attested", True, True)
        other = Maker.new()
        refusals: list[tuple[str, Maker, dict[str, object]]] = [
            ("lives in SOFTWARE, and TEE is needed", MAKER, {"level": 0}),
            ("did not start verified and locked", MAKER, {"locked": False}),
            ("another app than the operator's", MAKER, {"app": bytes(32)}),
            ("made for another invite", MAKER, {"of_invite": url(registrar)}),
            ("a root that the registrar trusts", other, {}),
        ]
        for words, maker, lies in refusals:
            attested(phone, invite, maker, **lies)  # type: ignore[arg-type]
            code, text = phone.refused("join", invite=invite)
            assert (code, words in text) == ("not_attested", True), text
        assert phone.do("status")["joined"] is False
        assert phone.do("attest", invite=invite)["refused"] == 1 + len(refusals), "the key store heard of each"
        attested(phone, invite)
        device = phone.do("join", invite=invite)["device"]
        assert phone.do("join", invite=invite)["device"] == device
        assert phone.do("renew")["ends_ms"] > 0, "a renewal of the same key needs no attestation"
    assert listed(registrar) == {device: "tee, verified boot, patches of 202302"}
