"""What devices say at check-in that they can do."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; it is filled when devices next check in."""
    op.add_column("devices", sa.Column("told_json", sa.Text(), nullable=True))
