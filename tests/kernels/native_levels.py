"""Runs tests of the native kernels once for each instruction set that this machine can run."""

import ctypes

import pytest

from actorlm.kernels.build import LEVELS, library_path


def runnable_levels():
    """Those that are compiled and that the CPU has."""
    portable = library_path("portable")
    if not portable.exists():
        return []
    supported = list(LEVELS)[: ctypes.CDLL(str(portable)).cpu_level() + 1]
    return [level for level in supported if library_path(level).exists()]


def on_all_levels(function):
    """Runs a test for each level, with two threads and with one; skips it where nothing is compiled."""
    levels = runnable_levels() or [pytest.param("", marks=pytest.mark.skip("there are no compiled kernels"))]
    return pytest.mark.parametrize("native", levels, indirect=True)(function)
