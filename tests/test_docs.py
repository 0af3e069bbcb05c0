"""Generated pages are fresh, and the README's commands exist."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _generator():
    spec = importlib.util.spec_from_file_location("generate_references", ROOT / "docs/generate_references.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["options.md", "fields.md", "metrics.md"])
def test_reference_pages_are_fresh(name):
    assert (ROOT / "docs" / name).read_text() == _generator().pages()[name], "run docs/generate_references.py"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
