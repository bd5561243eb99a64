"""Faults on purpose: real processes, a hostile network, disk and clock, and an account from outside of what held."""
