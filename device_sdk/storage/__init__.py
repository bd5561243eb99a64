"""Storage on a phone: its home, its keys, and records sealed in a vault."""
