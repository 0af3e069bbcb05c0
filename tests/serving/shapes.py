"""Shapes of a tree, by name: the options that cut a model over several workers."""

import pytest

SHAPES = {
    "tp2": ("--tp", 2),
    "pp2": ("--pp", 2),
    "tp2 pp2": ("--tp", 2, "--pp", 2),
    "dp2 tp2": ("--dp", 2, "--tp", 2),
}


def in_shapes(*short, long=()):
    """Parameters of a test or fixture: the options of these shapes, and of others in the long form."""
    marks = dict.fromkeys(short, ()) | dict.fromkeys(long, (pytest.mark.long,))
    return [pytest.param(SHAPES[name], id=name, marks=mark) for name, mark in marks.items()]


ONE = pytest.param((), id="one device")
