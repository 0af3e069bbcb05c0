"""Two kinds of tests of the Triton kernels, neither of which needs a GPU. Triton can do only one of them in a process.

`test_X.py` runs kernels in Triton's interpreter and wants TRITON_INTERPRET=1. `test_X_compiles.py` compiles them for
cards and wants it unset. Whichever the environment does not ask for is skipped; without Triton there is neither.
"""

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

collect_ignore_glob = [] if HAS_TRITON else ["test_*.py"]

if HAS_TRITON and INTERPRETED:
    from gpu.interpreter import mend

    mend()


def pytest_collection_modifyitems(items):
    """Skips the tests of the other kind."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        compiles = item.path.stem.endswith("_compiles")
        if compiles and INTERPRETED:
            item.add_marker(pytest.mark.skip("compiles kernels: needs TRITON_INTERPRET unset"))
        if not compiles and not INTERPRETED:
            item.add_marker(pytest.mark.skip("interprets kernels: needs TRITON_INTERPRET=1"))
