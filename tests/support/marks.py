"""Marks that several files of tests use."""

import pytest

# Of tests that speak HTTP/1.1 themselves.
HTTP1 = pytest.mark.parametrize("protocol", ["hot", "plain"], indirect=True)
