"""What runs on a device gives what runs on the CPU; without the device it is skipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus.data.party import Party
from isthmus.federation import wire
from isthmus.methods.base import Method
from isthmus.methods.optimizer import Optimizer
from isthmus.nn import products
from isthmus.nn.encoders import Encoder
from isthmus.nn.typed import TypedEncoder
from isthmus.study.loop import RunResult
from isthmus.testing import Subject, small_parties

CASES = [(name, level) for name, kind in Method.known().items() for level in kind.levels]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is at hand")


def result(method: str, parties: list[Party], encoder: Encoder, device: str) -> RunResult:
    kind = Method.named(method)
    subject = Subject(kind.read(plain_options(kind), method), parties, encoder)
    return subject.run(device=torch.device(device)).go()


def plain_options(kind: type[Method]) -> dict[str, Any]:
    """Three rounds, and plain SGD for Adam, which turns the rounding of a gradient near zero into whole steps."""
    options: dict[str, Any] = {"rounds": 3}
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Optimizer):
            options[name] = {"optimizer": "sgd", "lr": 0.1}
            if "keep_optimizer" in field.annotation.model_fields:
                options[name]["keep_optimizer"] = False
    return options


def assert_close(ours: RunResult, theirs: RunResult) -> None:
    expected = dict(wire.flatten(theirs.weights))
    for name, value in wire.flatten(ours.weights):
        torch.testing.assert_close(value.cpu(), expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize(("method", "level"), CASES)
def test_a_method_gives_on_cuda_what_it_gives_on_the_cpu(method: str, level: Any) -> None:
    parties, encoder = small_parties(level), Encoder.named(Method.named(method).encoder)(hidden=8)
    assert_close(result(method, parties, encoder, "cuda"), result(method, parties, encoder, "cpu"))


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("encoder", Encoder.known())
def test_an_encoder_gives_on_cuda_what_it_gives_on_the_cpu(encoder: str) -> None:
    kind = Encoder.named(encoder)
    parties, model = small_parties("node", typed=issubclass(kind, TypedEncoder)), kind(hidden=8)
    assert_close(result("fedavg", parties, model, "cuda"), result("fedavg", parties, model, "cpu"))


def test_a_device_without_sparse_products_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    parties, encoder = small_parties("node"), Encoder.named("gcn")(hidden=8)
    expected = result("fedavg", parties, encoder, "cpu")
    monkeypatch.setattr(products, "has_sparse", lambda device: False)
    assert_close(result("fedavg", parties, encoder, "cpu"), expected)
