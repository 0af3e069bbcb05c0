"""The native kernels of one level."""

import pytest

from actorlm.kernels.native import Native


@pytest.fixture
def native(request):
    """The kernels of one level, and two threads."""
    return Native(request.param, threads=2)
