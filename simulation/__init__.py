"""Emulated phones, experiments, evaluation and the demo: the one package that may import both sides."""
