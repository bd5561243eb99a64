"""Vectors of what a phone in another language has to make alike: draws, layouts, seals, tasks, signed releases.

`python -m tests.golden.client.write` writes them again; a test fails when the code no longer gives these bytes. The
client in `android_demo/` reads the same files.
"""
