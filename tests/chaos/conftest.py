"""What the runs of this directory share: a place for a tree's files, and the report that is shown at the end."""

import os
import tempfile

import pytest

pytest.register_assert_rewrite("tree")

import tiny_llama  # noqa: E402 - see the next line
from chaos_report import Report  # noqa: E402 - rewritten asserts tell what they compared

REPORT = pytest.StashKey[Report]()


def pytest_configure(config):
    config.stash[REPORT] = Report()


@pytest.fixture
def report(request):
    """What all runs of this session come to."""
    return request.config.stash[REPORT]


def pytest_terminal_summary(terminalreporter, config):
    if lines := [*config.stash[REPORT].lines()]:
        terminalreporter.section("kills by kind and phase")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="module")
def seed():
    """Another one gives other kills: TEST_CHAOS_SEED."""
    return os.environ.get("TEST_CHAOS_SEED", "1")


@pytest.fixture
def home():
    """An environment in which a tree has a run directory that nobody looks at who asks for all trees of this user."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as directory:
        yield {"XDG_RUNTIME_DIR": directory}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A Llama of noise, with room for long sequences and a template for conversations."""
    model = tiny_llama.write(tmp_path_factory.mktemp("models") / "tiny", seed=5, max_position_embeddings=1024)
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    return model
