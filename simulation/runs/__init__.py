"""Runs of an experiment: its description, what is measured and recorded, sweeps and studies over many of them."""
