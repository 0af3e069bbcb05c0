"""One file per family of models, and how their weights are read."""
