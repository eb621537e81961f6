import os

import pytest
import torch
from hypothesis import settings

from helpers import make_graph_parties, make_node_parties

settings.register_profile("suite", deadline=None)  # two test processes on two cores make single examples slow
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="session")
def no_cuts_of_yesterday(tmp_path_factory):
    """What a run keeps for the next one is kept for these tests alone."""
    before = os.environ.get("ISTHMUS_CACHE")
    os.environ["ISTHMUS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["ISTHMUS_CACHE"]
    else:
        os.environ["ISTHMUS_CACHE"] = before


@pytest.fixture
def node_parties():
    """Four parties with one graph each, of unequal sizes, one of them small."""
    return make_node_parties()


@pytest.fixture
def graph_parties():
    """Four parties with several small graphs each, one of them with two."""
    return make_graph_parties()


@pytest.fixture
def double_precision():
    """Tensors are made in double precision: what differs then is no rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
