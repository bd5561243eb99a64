"""Vectors of protocol MSA2 for a second implementation: JSON with bytes in hex, written by `write.py`.

`python -m tests.golden.secagg.write` writes them again; tests fail when the code no longer gives these bytes, and check
them against a second implementation in plain Python integers and a third one in Java (`Check.java`).
"""
