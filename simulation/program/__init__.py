"""The program `mien-sim` and the worker that the coordinator starts."""
