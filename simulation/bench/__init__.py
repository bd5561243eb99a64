"""What an emulated phone costs on this machine, in each engine: `mien-sim bench`, and the benchmark beside peers."""
