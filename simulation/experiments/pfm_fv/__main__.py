"""`python -m simulation.experiments.pfm_fv`, the same as `mien-sim reproduce pfm_fv`."""

from simulation.reproduce import main

if __name__ == "__main__":
    main("pfm_fv")
