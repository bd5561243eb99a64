"""Entry point of `python -m simulation`, the same as `mien-sim`."""

from simulation.program import main

if __name__ == "__main__":  # workers that are spawned import this module, and are no program
    main()
