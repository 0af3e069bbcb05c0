"""The trees of tests/serving, for clients that others wrote."""

import pytest

pytest.register_assert_rewrite("tree")
