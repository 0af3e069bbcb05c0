"""Clients of npm: each has a folder beside this file, into which `npm ci` installs it and what it needs."""

import shutil
from pathlib import Path

import pytest


def installed(name):
    """The folder of a client; the test is skipped where neither tox nor npm has filled it."""
    directory = Path(__file__).with_name(name)
    if not (directory / "node_modules").is_dir() or shutil.which("node") is None:
        pytest.skip(f"not installed; run `tox -e conformance-{name.replace('_', '-')}`")
    return directory
