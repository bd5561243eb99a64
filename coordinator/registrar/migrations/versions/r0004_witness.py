"""What the registrar cosigned last of the coordinator's log.

Revision ID: r0004
Revises: r0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, empty until a coordinator shows its first checkpoint."""
    op.create_table(
        "witnessed",
        sa.Column("coordinator_sha256", sa.String(64), nullable=False),
        sa.Column("origin", sa.String(200), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("at_unix_s", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("coordinator_sha256"),
    )
