"""`python -m simulation.papers.fedfr_uda`: measure, resume, and write the tables."""

from simulation.program.reproduce import main

if __name__ == "__main__":
    main("fedfr_uda")
