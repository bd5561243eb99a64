"""What hardware attested of a device's key.

Revision ID: r0003
Revises: r0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0003"
down_revision = "r0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty for devices that joined before."""
    op.add_column("devices", sa.Column("attestation", sa.String(200), nullable=False, server_default=""))
