"""Models on a phone: what is stored, signed releases, graphs, variants, and which of them this phone can run."""
