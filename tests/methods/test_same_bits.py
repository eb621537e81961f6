"""A party's model has the same bits alone and beside other parties, by every method that promises it."""

import pytest

from isthmus import store
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.testing import Subject, small_parties

PADS_TO_THE_MOST = {"fclg", "fgssl", "infograph", "mvgrl"}
"""Methods that compare a party's items in one product for all parties, see docs/reproducibility.md."""
TESTED_APART = {"o-pfgl"}  # in test_o_pfgl.py: with its defaults it takes two minutes


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(Method.known().keys() - PADS_TO_THE_MOST - TESTED_APART))
def test_models_have_the_same_bits_alone_and_side_by_side(name):
    method = Method.named(name)(rounds=3)
    levels = sorted({"node", "graph"}.intersection(method.levels))
    assert levels
    for level in levels:
        encoder = Encoder.named(method.encoder)(hidden=8)
        subject = Subject(method, small_parties(level, 5), encoder)
        together, alone = (subject.run(side_by_side=each).go().models for each in (True, False))
        assert store.pack(together) == store.pack(alone), level
