"""Models as files: signed bundles, variants for inference, and the models that are known by name."""
