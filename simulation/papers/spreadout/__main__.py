"""`python -m simulation.papers.spreadout`, the same as `mien-sim reproduce spreadout`."""

from simulation.program.reproduce import main

if __name__ == "__main__":
    main("spreadout")
