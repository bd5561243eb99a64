"""A fleet of emulated phones on a virtual clock, led by the coordinator's own round code."""
