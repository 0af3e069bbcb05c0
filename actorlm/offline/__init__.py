"""A model in the caller's process: the same scheduler and the same worker as a tree's, driven by plain calls."""
