"""Parties that tests of several methods share."""

import pytest

from isthmus.testing import small_parties


@pytest.fixture(scope="module")
def parties():
    return small_parties("node")
