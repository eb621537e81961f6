"""An option that no method has is suggested where it stands, as the caller writes it."""

from __future__ import annotations

import pytest

from isthmus.errors import flags_in_messages, format_option
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedprox import FedProx
from isthmus.study.config import Study
from isthmus.study.option_hints import ONE_VALUE, TABLES, missing_option, paths_of_tables

WHERE = {
    "lr": ("'local.lr'", "local={'lr': 1}", "--set local.lr=1"),
    "ronds": ("'rounds'", "rounds=1", "--rounds 1"),
    "encoder": ("encoder in [model]", "model=1", "--encoder 1"),
    "class_weight": ("class_weights in [task]", "task={'class_weights': 1}", "--set task.class_weights=1"),
    "taks.metric": ("metric in [task]", "metric=1", "--metric 1"),
    "split": ("split in [partition]", "partition={'split': 1}", "--split 1"),
}


def test_keys_that_no_grid_varies_are_those_of_a_study() -> None:
    assert set(ONE_VALUE) < Study.model_fields.keys()


@pytest.mark.parametrize("name", WHERE)
def test_the_place_is_that_of_the_file_of_python_or_of_the_command_line(name: str) -> None:
    in_file, in_python, flag = WHERE[name]
    assert missing_option(name, 1, [FedAvg]).endswith(f": did you mean {in_file}?")
    assert missing_option(name, 1, [FedAvg()], format_option).endswith(f": did you mean {in_python}?")
    with flags_in_messages():
        assert missing_option(name, 1, [FedAvg], format_option).endswith(f": did you mean {flag}?")


def test_methods_that_have_it_are_named_and_else_all_options_of_the_study() -> None:
    assert missing_option("mu", 1, [FedAvg]).endswith("has an option 'mu': methods that have it: fedprox, moon")
    assert missing_option("muu", 1, [FedProx]).endswith("did you mean 'mu'?")
    assert "known: aggregate, evaluate_by" in missing_option("qqq", 1, [FedAvg])


def test_every_table_gives_its_paths() -> None:
    assert {path.partition(".")[0] for path in paths_of_tables()} == TABLES.keys()
