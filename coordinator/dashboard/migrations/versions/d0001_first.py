"""Accounts, sessions, and a log of sign-ins.

Revision ID: d0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "d0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, with a log that has no entry yet."""
    op.create_table(
        "users",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("scrypt_n", sa.Integer, nullable=False),
        sa.Column("salt", sa.LargeBinary, nullable=False),
        sa.Column("password_hash", sa.LargeBinary, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("token_sha256", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), sa.ForeignKey("users.name"), nullable=False, index=True),
        sa.Column("began_ms", sa.BigInteger, nullable=False),
        sa.Column("used_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "audit_entries",
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(120), nullable=False),
        sa.Column("detail_json", sa.Text, nullable=False),
        sa.Column("previous_sha256", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
    )
    op.create_index("ix_audit_entries_subject", "audit_entries", ["subject"])
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
    )
    op.get_bind().execute(sa.insert(head).values(id=1, position=0, sha256="0" * 64))


def downgrade() -> None:
    """Refuse: it would drop who signed in."""
    raise NotImplementedError("a log of sign-ins is not dropped; restore a backup instead")
