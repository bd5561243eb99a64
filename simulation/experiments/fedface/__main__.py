"""`python -m simulation.experiments.fedface`, the same as `mien-sim reproduce fedface`."""

from simulation.reproduce import main

if __name__ == "__main__":
    main("fedface")
