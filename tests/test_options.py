"""Typed options, the message for a wrong value, and classes found by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from isthmus.data.partition import Partition
from isthmus.data.pool import DataSet
from isthmus.errors import IsthmusError, flags_in_messages
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.options import OnlyWith, Options, Registered, suggest_option
from isthmus.tasks.base import Task


class Inner(Options):
    lr: float = Field(0.1, gt=0)
    """Learning rate."""
    epochs: int = 1


class Example(Options):
    name_of_it: str
    rounds: int = Field(10, ge=1)
    """Rounds,
    at most."""
    optimizer: Literal["adam", "sgd"] = "adam"
    inner: Inner = Inner(lr=0.5, epochs=3)
    most: Annotated[int, Field(ge=1)] | None = None
    either: bool | int = 3
    shares: tuple[float, ...] = ()
    by_name: dict[str, int] = Field(default={})
    hops: Literal[1, 2] = 1
    share: float | Literal["all"] = "all"


class Descent(Options):
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: Annotated[float, OnlyWith("optimizer", "sgd")] = 0.0


class Fixed(Descent):
    without: ClassVar[tuple[str, ...]] = ("optimizer",)


class Shape(Registered):
    kind: ClassVar[str] = "shape"


class Circle(Shape):
    """Round.

    More on circles.
    """

    name: ClassVar[str] = "circle"
    radius: float = 1.0
    """Half its width."""
    inner: Inner = Inner(lr=0.5)


class Square(Shape):
    name: ClassVar[str] = "square"


class BigSquare(Square):
    """Inherits its name, so a look-up finds the base class."""

    side: int = 2


def read(**values: Any) -> Example:
    return Example.read({"name_of_it": "x", **values}, "example")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"ronds": 3}, "example: unknown option 'ronds': did you mean 'rounds'?"),
        ({"inner": {"epoch": 3}}, "example: unknown option 'inner.epoch': did you mean 'inner.epochs'?"),
        ({"epochs": 3}, "example: unknown option 'epochs': did you mean 'inner.epochs'?"),
        ({"rounds": 0}, "example: option 'rounds' is 0: give at least 1"),
        ({"rounds": "many"}, "example: option 'rounds' is 'many': give a whole number"),
        ({"rounds": True}, "example: option 'rounds' is 'true': give a whole number"),
        ({"inner": {"lr": False}}, "example: option 'inner.lr' is 'false': give a number"),
        ({"most": True}, "example: option 'most' is 'true': give a whole number"),
        ({"shares": [1, False]}, "example: option 'shares.1' is 'false': give a number"),
        ({"by_name": {"a": True}}, "example: option 'by_name.a' is 'true': give a whole number"),
        ({"hops": True}, "example: option 'hops' is 'true': give 1 or 2"),
        ({"share": True}, "example: option 'share' is 'true': give a number, or 'all'"),
        ({"rounds": None}, "example: option 'rounds' is None: give a whole number"),
        ({"optimizer": "adan"}, "example: option 'optimizer' is 'adan': give 'adam' or 'sgd'"),
        ({"inner": {"lr": -1}}, "example: option 'inner.lr' is -1: give more than 0"),
        ({"inner": {"lr": float("nan")}}, "example: option 'inner.lr' is nan: give a finite number"),
        ({"inner": {"lr": float("inf")}}, "example: option 'inner.lr' is inf: give a finite number"),
        ({"inner": 3}, "example: option 'inner' is 3: "),
    ],
)
def test_wrong_option_is_one_line_that_names_it(values: dict[str, Any], text: str) -> None:
    with pytest.raises(IsthmusError) as caught:
        read(**values)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
    assert read(either=True).either is True
    assert read(shares=(1, 0.5)).shares == (1.0, 0.5)


def test_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(IsthmusError, match=r"^example: option 'rounds' is 'x{199}\.\.\.: "):
        read(rounds="x" * 1000)
    with pytest.raises(IsthmusError, match="option 'optimizer' is a number too long to show: "):
        read(optimizer=10**5000)


def test_all_problems_are_listed() -> None:
    assert Example.problems({"name_of_it": "x"}) == []
    assert Example.problems({"rounds": 0, "inner": {"epoch": 3}}) == [
        "unknown option 'inner.epoch': did you mean 'inner.epochs'?",
        "option 'name_of_it' is required",
        "option 'rounds' is 0: give at least 1",
    ]


def test_missing_required_option_is_named() -> None:
    with pytest.raises(IsthmusError, match=r"^example: option 'name_of_it' is required$"):
        Example.read({}, "example")
    with pytest.raises(IsthmusError, match=r"^example: unknown option 'name_of_itt': did you mean 'name_of_it'\?$"):
        Example.read({"name_of_itt": "x"}, "example")


def test_table_changes_only_the_entries_it_names() -> None:
    assert read(inner={"epochs": 7}).inner == Inner(lr=0.5, epochs=7)


def test_options_object_replaces_the_whole_default() -> None:
    assert read(inner=Inner(epochs=7)).inner == Inner(lr=0.1, epochs=7)


def test_options_are_frozen() -> None:
    with pytest.raises(IsthmusError, match=r"^\w+: rounds cannot be changed: make a new one with rounds = 3$"):
        read().rounds = 3  # type: ignore[misc]
    with pytest.raises(IsthmusError, match=r"^\w+: nothing cannot be changed: .{0,300}\.\.\.$"):
        read().nothing = list(range(1000))  # type: ignore[attr-defined]  # there is no such option
    with pytest.raises(IsthmusError, match=r"^\w+: rounds cannot be deleted$"):
        del read().rounds


def test_reading_does_not_change_the_values() -> None:
    values = {"name_of_it": "x", "inner": {"epochs": 7}}
    Example.read(values, "example")
    assert values == {"name_of_it": "x", "inner": {"epochs": 7}}


def test_class_is_found_by_name_in_any_case() -> None:
    assert Shape.named("Circle") is Circle
    assert Shape.named("square") is Square
    assert list(Shape.known()) == ["circle", "square"]


def test_unknown_name_suggests_a_known_one() -> None:
    with pytest.raises(IsthmusError, match=r"^unknown shape 'cirle': did you mean 'circle'\?$"):
        Shape.named("cirle")


def test_unknown_name_of_what_users_may_write_themselves_says_how() -> None:
    with pytest.raises(IsthmusError, match=r"known: adafgl, .*; one of your own: import the file that defines it$"):
        Method.named("zzz")
    with flags_in_messages(), pytest.raises(IsthmusError, match=r"; one of your own: --import FILE\.py$"):
        Encoder.named("zzz")
    with pytest.raises(IsthmusError, match=r"'fedavg'\?$"):
        Method.named("fedavgg")


def test_description_lists_nested_options_with_the_defaults_of_their_owner() -> None:
    described = Circle.describe()
    assert (described["name"], described["summary"]) == ("circle", "Round.")
    assert [(each["name"], each["default"], each["help"]) for each in described["options"]] == [
        ("radius", 1.0, "Half its width."),
        ("inner.lr", 0.5, "Learning rate."),
        ("inner.epochs", 1, ""),
    ]


def test_options_that_are_wrong_in_python_are_one_line() -> None:
    with pytest.raises(IsthmusError, match=r"^data set 'banks': option 'nodes' is -1: give at least 1"):
        DataSet.named("banks")(nodes=-1)
    with pytest.raises(IsthmusError, match=r"^data set 'tu': option 'title' is required: the set's name in the"):
        DataSet.named("tu")()
    with pytest.raises(IsthmusError, match=r"^method 'fedavg': unknown option 'local\.lrr'"):
        Method.named("fedavg")(local={"lrr": 1})


@pytest.mark.parametrize("kind", [Method, DataSet, Partition, Encoder, Task])
def test_everything_built_in_is_described(kind: type[Registered]) -> None:
    built_in = {name: each for name, each in kind.known().items() if each.__module__.startswith("isthmus.")}
    assert built_in
    for name, each in built_in.items():
        described = each.describe()
        assert described["summary"], f"{kind.kind} '{name}' has no docstring"
        for option in described["options"]:
            assert option["help"], f"option '{option['name']}' of {kind.kind} '{name}' has no docstring"


def test_a_name_is_a_text_and_found_in_capitals_or_not() -> None:
    with pytest.raises(IsthmusError, match=r"Oval: its name is 3: give a text$"):

        class Oval(Circle):
            name = 3

    with pytest.raises(IsthmusError, match=r"Up: its name is '../up': use letters, digits, '-' and '_' alone$"):

        class Up(Circle):
            name = "../up"

    class Cube(Circle):
        name: ClassVar[str] = "MyCube"

    assert Shape.named("MyCube") is Shape.named("mycube") is Cube
    Cube.name = ""


def test_a_class_of_ones_own_does_not_replace_a_built_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Round(Circle):
        name: ClassVar[str] = "circle"

    assert Shape.known()["circle"] is Round  # both are a user's own: defined again, as in a notebook
    Round.name = ""
    monkeypatch.setattr(Circle, "__module__", "isthmus.shapes")

    with pytest.raises(IsthmusError, match=r"^shape 'circle' is built in: give .*Disc another name$"):

        class Disc(Circle):
            name: ClassVar[str] = "circle"

    assert Shape.known()["circle"] is Circle  # and a corrected class is not in its way


def test_what_a_class_of_ones_own_has_not_defined_is_one_line() -> None:
    class Bare(Shape, ABC):
        @abstractmethod
        def area(self) -> float: ...

    with pytest.raises(IsthmusError, match=r"^shape 'bare': .*Bare does not define area: define it$"):
        Bare.read({}, "shape 'bare'")


def test_an_option_without_an_effect_is_refused_with_the_one_that_it_needs() -> None:
    assert Descent.problems({"momentum": 0.0}) == Descent.problems({"momentum": 0.9, "optimizer": "sgd"}) == []
    assert Descent.problems({"momentum": 0.9}) == [
        "momentum = 0.9 has no effect with optimizer = 'adam': leave it out, or set optimizer to 'sgd'"
    ]


def test_a_number_beyond_single_precision_is_refused() -> None:
    for size in (1e31, -1e31):
        assert Circle.problems({"radius": size}) == [f"radius = {size}: give at most 1e+30 in size"]
    assert Circle.problems({"inner": {"lr": 1e31}}) == ["option 'inner': lr = 1e+31: give at most 1e+30 in size"]
    assert Circle.problems({"radius": -1e30}) == Circle.problems({"radius": 1e-300}) == []


def test_an_inherited_option_without_an_effect_is_refused_and_not_listed() -> None:
    assert Fixed.option_names() == ["momentum"]
    assert Fixed.problems({"optimizer": "adam"}) == []
    assert Fixed.problems({"optimizer": "sgd"}) == ["optimizer has no effect here: leave it out"]
    fedavg, ditto = (Method.named(name).read({}, name).to_dict().keys() for name in ("fedavg", "ditto"))
    assert "evaluate_with" in fedavg - ditto


class OfSeveral(Options):
    weights: Literal["none", "balanced"] | list[Annotated[float, Field(gt=0)]] = "none"
    inner: Inner | None = None
    pair: tuple[float, float] = (0.0, 1.0)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"weights": "auto"}, "'weights' is 'auto': give 'none' or 'balanced', or a list"),
        ({"weights": [1, 0]}, "'weights.1' is 0: give more than 0"),
        ({"inner": {"lr": "fast"}}, "'inner.lr' is 'fast': give a number"),
        ({"inner": {"lrr": 1}}, "unknown option 'inner.lrr': did you mean 'inner.lr'?"),
        ({"inner": 3}, "'inner' is 3: give a table of options"),
        ({"pair": [1]}, "'pair' is [1]: give more values"),
    ],
)
def test_what_an_option_may_be_is_said_in_one_line(values: dict[str, Any], text: str) -> None:
    (problem,) = OfSeveral.problems(values)
    assert text in problem


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lr", "did you mean 'local.lr'?"),
        ("local.epoch", "did you mean 'local.epochs'?"),
        ("local.rounds", "did you mean 'rounds'?"),
        ("epoch", "did you mean 'local.epochs'?"),
        ("zzz", "known: local, rounds"),
        ("local.zzz", "known: local.epochs, local.lr"),
    ],
)
def test_a_near_miss_is_suggested_with_its_path(key: str, hint: str) -> None:
    assert suggest_option(key, ["rounds", "local", "local.lr", "local.epochs", "other.lr"]) == hint
