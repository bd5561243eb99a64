"""Real servers that tests start for themselves: PostgreSQL and an S3-compatible object store."""
