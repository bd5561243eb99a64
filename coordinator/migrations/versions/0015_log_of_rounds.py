"""The public log of rounds: entries, the nodes of their tree, and where it stands."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the three tables; the log begins with what happens next."""
    op.create_table(
        "log_entries",
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("subject", sa.String(120), nullable=False),
        sa.Column("entry", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_log_entries"),
    )
    op.create_index("ix_log_entries_subject", "log_entries", ["subject"])
    op.create_table(
        "log_nodes",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "position", name="pk_log_nodes"),
    )
    head = op.create_table(
        "log_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("cosigned", sa.Text(), nullable=False),
        sa.Column("cosigned_size", sa.BigInteger(), nullable=False),
        sa.Column("certificates_after", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_head"),
    )
    row = {"id": 1, "size": 0, "cosigned": "", "cosigned_size": 0, "certificates_after": 0}
    op.get_bind().execute(sa.insert(head).values(**row))
