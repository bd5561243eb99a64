"""Invites, devices, their certificates and revocations.

Revision ID: r0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "devices",
        sa.Column("device_id", sa.String(32), primary_key=True),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("note", sa.String(200), nullable=False),
        sa.Column("joined_unix_s", sa.BigInteger, nullable=False),
        sa.Column("revoked_unix_s", sa.BigInteger, nullable=True),
        sa.Column("successor_id", sa.String(32), sa.ForeignKey("devices.device_id"), nullable=True),
    )
    op.create_table(
        "invites",
        sa.Column("token_sha256", sa.String(64), primary_key=True),
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("note", sa.String(200), nullable=False),
        sa.Column("created_unix_s", sa.BigInteger, nullable=False),
        sa.Column("expires_unix_s", sa.BigInteger, nullable=False),
        sa.Column("used_unix_s", sa.BigInteger, nullable=True),
        sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.device_id"), nullable=True),
    )
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String(40), primary_key=True),
        sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.device_id"), nullable=False, index=True),
        sa.Column("der", sa.LargeBinary, nullable=False),
        sa.Column("issued_unix_s", sa.BigInteger, nullable=False),
        sa.Column("expires_unix_s", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "revocations",
        sa.Column("serial", sa.String(40), sa.ForeignKey("certificates.serial"), primary_key=True),
        sa.Column("revoked_unix_s", sa.BigInteger, nullable=False),
        sa.Column("expires_unix_s", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.String(200), nullable=False),
    )
    op.create_table(
        "revocation_lists",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("issued_unix_s", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Refuse: it would forget which devices are revoked."""
    raise NotImplementedError("the first version of the store has nothing before it; restore a backup instead")
