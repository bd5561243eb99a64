"""Benchmarks: each is `python -m benchmarks.NAME [--quick] [--json]` and ends with one line of JSON."""
