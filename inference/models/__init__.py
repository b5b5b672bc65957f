"""Layer 09: the models that exist, where their weights are and how they spell text."""
