"""What a server can do with what it holds in each mode: recognise, redraw and count people, measured by attacking.

`python -m simulation.papers.leakage --help`. Every figure is a lower bound: a better attack may find more.
"""
