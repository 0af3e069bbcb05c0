"""Runs tests of the native kernels once for each instruction set that this machine can run."""

import pytest

from actorlm.kernels.native import runnable_levels


def on_all_levels(function):
    """Runs a test for each level, with two threads and with one; skips it where nothing is compiled."""
    levels = runnable_levels() or [pytest.param("", marks=pytest.mark.skip("there are no compiled kernels"))]
    return pytest.mark.parametrize("native", levels, indirect=True)(function)
