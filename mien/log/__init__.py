"""Logs in which every record holds the hash of the one before: `chain` links them, `audit` is the operators' log."""
