"""Methods with one model per group of parties conform, and their models are saved under the groups' names."""

import pytest
import torch
from groups import TwoGroups
from safetensors.torch import load_file

from isthmus.study.run import run
from isthmus.testing import check_method, small_parties


def test_models_of_groups_conform():
    check_method(TwoGroups(rounds=3), small_parties("node"))


@pytest.mark.parametrize("method", [TwoGroups(rounds=2, evaluate_with="trained"), TwoGroups(rounds=2)])
def test_models_of_groups_are_saved(method, tmp_path):
    parties = small_parties("node")
    (found,) = run(method, parties, out=tmp_path / "out").runs
    even, odd = (
        load_file(tmp_path / f"out/weights/two-groups-0/groups/{name}.safetensors") for name in ("even", "odd")
    )
    assert even.keys() == odd.keys()
    assert not torch.equal(even["convs.1.bias"], odd["convs.1.bias"])
    assert found.summary()["groups"] == {"even": ["party-0", "party-2"], "odd": ["party-1", "party-3"]}
    assert ("parties" in found.models) == (method.evaluate_with == "trained")
