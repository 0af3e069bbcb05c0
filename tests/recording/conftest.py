"""A core that is recorded, with the worker that believes nothing as its model."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "scheduling"))  # its replica without devices
