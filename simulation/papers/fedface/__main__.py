"""`python -m simulation.papers.fedface`, the same as `mien-sim reproduce fedface`."""

from simulation.program.reproduce import main

if __name__ == "__main__":
    main("fedface")
