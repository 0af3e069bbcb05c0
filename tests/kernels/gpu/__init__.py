"""A package, since its files have the names of the kernels they test, as those of the CPU's kernels have."""
