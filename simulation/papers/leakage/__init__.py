"""Leakage to a server in each mode: it recognises, redraws and counts people, measured by attacking.

`python -m simulation.papers.leakage --help`. Every figure is a lower bound: a better attack may find more.
"""
