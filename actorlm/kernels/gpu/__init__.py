"""Triton kernels for GPUs, one file each: contract, torch reference, kernel, launcher."""
