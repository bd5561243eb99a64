"""Other simulators, measured beside Mien's: each in its own environment, none a dependency of Mien."""
