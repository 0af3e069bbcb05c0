"""Generated pages are fresh, links lead somewhere, and what pages quote of the code is there."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


def _generator():
    spec = importlib.util.spec_from_file_location("generate_references", ROOT / "docs/generate_references.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["options.md", "fields.md", "metrics.md", "errors.md"])
def test_reference_pages_are_fresh(name):
    assert (ROOT / "docs" / name).read_text() == _generator().pages()[name], "run docs/generate_references.py"


def _prose(page):
    """A page without its code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def _anchors(page):
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {NOT_IN_ANCHORS.sub("", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", _prose(page)):
        found = page.parent / target if target else page
        assert found.exists(), target
        assert not anchor or anchor in _anchors(found), f"{target}#{anchor}"


NEW = ["actorlm/messages/auditor.py", "actorlm/actors/auditor.py", "actorlm/kernels/gelu_mul.py"]
NEW += ["actorlm/kernels/gelu_mul.cpp", "tests/kernels/test_gelu_mul.py", "actorlm/api/limits.py"]
"""What the recipes of docs/adding make."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_exist(page):
    named = set(re.findall(r"\b(?:actorlm|tests|docs|examples|benchmarks)/[\w/]+\.\w+", page.read_text()))
    for file in named:
        assert (ROOT / file).exists() != (file in NEW), file


def _whole_files():
    """Python files that pages show wholly: those that open with a docstring."""
    for page in PAGES:
        for code in re.findall(r'^```python\n(""".*?)^```', page.read_text(), re.DOTALL | re.MULTILINE):
            yield pytest.param(code, id=f"{page.name}: {code.splitlines()[0]}")


@pytest.mark.parametrize("code", list(_whole_files()))
def test_what_recipes_import_exists(code):
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.ImportFrom) or not node.module.startswith("actorlm."):
            continue
        if f"{node.module.replace('.', '/')}.py" not in NEW:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


@pytest.mark.parametrize(("index", "pages"), [("README.md", "*.md"), ("which-file.md", "adding/*.md")])
def test_every_page_is_in_its_index(index, pages):
    docs = ROOT / "docs"
    text = (docs / index).read_text()
    for page in docs.glob(pages):
        assert page.name == index or f"({page.relative_to(docs)})" in text, page.name


def _quotes():
    """(file, code) of each piece of code that the tour quotes, below the file's heading."""
    tour = (ROOT / "docs/tour.md").read_text()
    for file, section in re.findall(r"^## .*?\]\(\.\./(.*?)\)\n(.*?)(?=^## )", tour, re.DOTALL | re.MULTILINE):
        for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            yield pytest.param(file, code.strip(), id=f"{file}: {code.strip().splitlines()[0]}")


QUOTES = list(_quotes())


@pytest.mark.parametrize(("file", "code"), QUOTES)
def test_the_tour_quotes_what_is_there(file, code):
    """Word for word; `...` stands for anything."""
    words = [re.escape(word).replace(r"\.\.\.", ".*?") for word in code.split()]
    found = re.search(r"\s*".join(words), (ROOT / file).read_text(), re.DOTALL)
    assert found, f"docs/tour.md quotes what {file} does not say"


def test_the_tour_visits_seven_files():
    assert len({param.values[0] for param in QUOTES}) == 7
