"""Cost of an emulated phone on this machine, in each engine: `mien-sim bench`, and the benchmark beside peers."""
