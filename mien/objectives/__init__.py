"""Training objectives in torch: heads, losses, and the losses that adapt a model to another domain."""
