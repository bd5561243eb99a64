"""Fuzzing of every call and of every reader of foreign bytes: few inputs in CI, many in `make fuzz`."""
