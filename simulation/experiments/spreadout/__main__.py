"""`python -m simulation.experiments.spreadout`, the same as `mien-sim reproduce spreadout`."""

from simulation.reproduce import main

if __name__ == "__main__":
    main("spreadout")
