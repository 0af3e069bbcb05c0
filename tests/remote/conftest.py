"""Asserts of the odd server tell what they compared."""

import pytest

pytest.register_assert_rewrite("odd_server")
