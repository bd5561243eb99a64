"""Shared frame of the programs around the functional core: files, command lines, logs.

The one place under `mien` that may touch files and terminals. Nothing else in `mien` imports it.
"""
