"""Reports of runs, sweeps, studies and the demo, each one self-contained page."""
