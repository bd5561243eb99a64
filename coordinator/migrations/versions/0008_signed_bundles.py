"""Signed bundles of releases."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "bundles",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("model_id", sa.String(64), nullable=False),
        sa.Column("manifest_json", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("spec_json", sa.LargeBinary(), nullable=False),
        sa.Column("added_ms", sa.BigInteger(), nullable=False),
        sa.Column("added_by", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_bundles"),
        sa.ForeignKeyConstraint(["model_id"], ["models.model_id"], name="fk_bundles_model_id_models"),
    )
    op.create_index("ix_bundles_model_id", "bundles", ["model_id"])
