"""Whether a round's device said that it knows whose faces it trains on."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; devices of rounds that go on were asked for no such thing."""
    op.add_column("participants", sa.Column("labelled", sa.Boolean(), server_default=sa.false(), nullable=False))
