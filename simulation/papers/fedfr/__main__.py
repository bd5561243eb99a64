"""`python -m simulation.papers.fedfr`, the same as `mien-sim reproduce fedfr`."""

from simulation.program.reproduce import main

if __name__ == "__main__":
    main("fedfr")
