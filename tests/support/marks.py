"""Marks that several test files use."""

import pytest

# For tests that speak HTTP/1.1 themselves.
HTTP1 = pytest.mark.parametrize("protocol", ["hot", "plain"], indirect=True)
