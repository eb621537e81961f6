from importlib import metadata

import pytest

import isthmus
from isthmus.version import LAWS, VERSION


def test_the_version_is_that_of_the_installed_package():
    assert VERSION == isthmus.__version__ == metadata.version("isthmus")


def test_figures_change_only_with_the_number_of_the_laws():
    """If this loss changes, raise LAWS in `version.py`, so that results of papers name the runs made before."""
    history = isthmus.run("fedavg", rounds=3, seed=0).runs[0].history
    losses = [value for _, name, value in history if name == "test_loss"]
    assert (LAWS, losses) == (2, pytest.approx([1.290678, 1.143938, 1.016838], abs=1e-5))
