"""`python -m simulation.papers.pfm_fv`, the same as `mien-sim reproduce pfm_fv`."""

from simulation.program.reproduce import main

if __name__ == "__main__":
    main("pfm_fv")
