"""Hundreds of phones that speak the real protocol, in one process or several, against a real coordinator.

Each has its own key, certificate, connection and state, and takes part by the code that phones run
(`device_sdk.rounds.participate.Participant`). What is not secret they share: the model, the runtime that trains it, the
memory of the faces. What a phone keeps on its disk, encrypted, is kept here in memory for as long as the process lives.
"""
