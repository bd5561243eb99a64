"""`python -m simulation.experiments.fedgc`, the same as `mien-sim reproduce fedgc`."""

from simulation.reproduce import main

if __name__ == "__main__":
    main("fedgc")
