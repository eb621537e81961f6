from importlib import metadata

import isthmus
from isthmus.version import VERSION


def test_the_version_is_that_of_the_installed_package():
    assert VERSION == isthmus.__version__ == metadata.version("isthmus")
