"""Phones of the SDK among a fleet whose registrar is an authority alone."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from device_sdk.server.identity import Identity
from simulation.testing import FakeFleet


def identity(fleet: FakeFleet, address: str, population: str = "people") -> Identity:
    """Return the identity of a new phone that joined at an address."""
    credentials = fleet.admit(population)
    key = serialization.load_pem_private_key(credentials.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    leaf, registrar = x509.load_pem_x509_certificates(credentials.chain)
    coordinator = x509.load_pem_x509_certificate(credentials.coordinator_ca)
    return Identity(credentials.device_id, credentials.population, "", address, leaf, registrar, coordinator, key)
