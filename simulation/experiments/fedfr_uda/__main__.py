"""`python -m simulation.experiments.fedfr_uda`: measure, resume, and write the tables."""

from simulation.reproduce import main

if __name__ == "__main__":
    main("fedfr_uda")
