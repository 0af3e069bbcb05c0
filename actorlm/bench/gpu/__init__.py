"""Measuring the kernels for GPUs, and a model that runs on them, on a machine with one GPU."""
