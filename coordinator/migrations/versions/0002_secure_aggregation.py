"""Steps of secure aggregation, which a restart has to know."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table of steps."""
    op.create_table(
        "steps",
        sa.Column("id", _ROW_ID, autoincrement=True, nullable=False),
        sa.Column("round_id", _ROW_ID, nullable=False),
        sa.Column("device_id", sa.String(32), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("message", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_steps"),
        sa.UniqueConstraint("round_id", "stage", "device_id", name="uq_steps_round_id_stage_device_id"),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name="fk_steps_round_id_rounds"),
    )
