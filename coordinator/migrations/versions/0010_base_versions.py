"""Attempts say how many rounds had closed when their cohort was chosen: in asynchronous mode others close meanwhile."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; so far round n began when n - 1 rounds had closed."""
    op.add_column("rounds", sa.Column("base_version", sa.Integer(), nullable=False, server_default="0"))
    op.execute("UPDATE rounds SET base_version = round - 1")
