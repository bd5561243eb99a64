"""Entry point of `python -m simulation.synthetic`."""

from simulation.synthetic.cli import main

main()
