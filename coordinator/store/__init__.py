"""What the coordinator keeps: a relational database, content-addressed blobs, and sealed data that must not leak."""
