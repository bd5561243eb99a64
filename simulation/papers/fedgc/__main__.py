"""`python -m simulation.papers.fedgc`, the same as `mien-sim reproduce fedgc`."""

from simulation.program.reproduce import main

if __name__ == "__main__":
    main("fedgc")
