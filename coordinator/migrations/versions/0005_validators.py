"""Rounds with validators: what an attempt asks of its devices, and where candidates wait to be judged."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two columns; every attempt so far was one of trainers."""
    op.add_column("tasks", sa.Column("candidates_sha256", sa.String(64), nullable=True))
    op.add_column("rounds", sa.Column("duty", sa.String(16), nullable=False, server_default="train"))
