"""Real servers that tests start for themselves: PostgreSQL, an S3-compatible object store, HAProxy."""
