"""Replicas of a coordinator, who of them runs which population's tasks, and who holds which contribution."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and the column."""
    op.create_table(
        "replicas",
        sa.Column("replica_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("address", sa.String(255), nullable=False),
        sa.Column("software", sa.String(80), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("replica_id", name="pk_replicas"),
    )
    op.create_table(
        "leases",
        sa.Column("population", sa.String(64), nullable=False),
        sa.Column("replica_id", sa.String(32), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("population", name="pk_leases"),
    )
    op.add_column("uploads", sa.Column("held_by", sa.String(32), nullable=True))
