"""`python -m simulation.experiments.fedfr`, the same as `mien-sim reproduce fedfr`."""

from simulation.reproduce import main

if __name__ == "__main__":
    main("fedfr")
