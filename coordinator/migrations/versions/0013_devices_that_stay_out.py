"""Devices whose owners asked that they be left out of rounds."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; nobody has asked yet."""
    op.add_column("devices", sa.Column("stays_out_since_ms", sa.BigInteger(), nullable=True))
