"""The coordinator's stores: a relational database, content-addressed blobs, and sealed data that must not leak."""
