"""Generated from proto/mien/v1 by scripts/generate_stubs.py."""
