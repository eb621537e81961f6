"""What a report takes for pooled is what is."""

from isthmus.methods.base import Method
from isthmus.report.wording import BOUNDS, POOLED


def test_pooled_methods_are_told_apart_in_reports():
    built_in = {name: kind for name, kind in Method.known().items() if kind.__module__.startswith("isthmus.")}
    assert {name for name, what in BOUNDS.items() if what == POOLED} == {n for n, k in built_in.items() if k.pooled}
