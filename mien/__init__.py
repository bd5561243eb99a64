"""Mien: federated face recognition in which no face and no embedding leaves a phone.

This package computes: it opens no socket or file and reads no clock. `coordinator`, `device_sdk` and `simulation` act.
"""
