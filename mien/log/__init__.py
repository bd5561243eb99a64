"""Logs that show what was changed: `chain` and `audit` are the operators' own, `merkle`, `checkpoints` and `entries`
the public log of rounds, of which phones and witnesses see that it was only ever added to.
"""
