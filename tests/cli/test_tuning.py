"""`isthmus tune` prints a line for each trial and writes a study with the best settings."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Isthmus
from isthmus.study.tuning import BEST

TUNE = (
    "tune", "--method", "fedavg,majority", "--encoder", "mlp", "--rounds", "2", "--set", "data.nodes=100",
    "--trials", "2", "--out", "tuned", "--metric", "macro_f1", "--select-by", "balanced_accuracy",
)  # fmt: skip


def test_tune_tells_of_each_trial_and_its_best_settings_run(isthmus: Isthmus, tmp_path: Path) -> None:
    done = isthmus(*TUNE, "--range", "local.lr=0.01..0.02")
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("fedavg: validation ") and "local.lr = 0.01" in line for line in lines)
    assert done.out.splitlines()[-1] == f"best settings in {Path('tuned') / BEST}, results in tuned"
    assert 'metric = "macro_f1"\nselect_by = "balanced_accuracy"' in (tmp_path / "tuned" / BEST).read_text()
    assert 'encoder = "mlp"' in (tmp_path / "tuned" / BEST).read_text()
    assert isthmus("run", tmp_path / "tuned" / BEST).code == 0
    other = isthmus(*TUNE, "--range", "local.lr=0.01..0.03", "--rounds", "3", "--resume")
    assert other.code == 2
    assert "which differs in method 'fedavg', method 'majority', the range of 'local.lr': resume it" in other.err
    more = isthmus(*TUNE, "--range", "local.lr=0.01..0.02", "--resume", "--trials", "3", "--json")
    tried = json.loads(more.out)["search"]["tried"]
    assert [each["of"] for each in tried].count("fedavg") == 3


def test_what_cannot_be_searched_is_one_line_and_leaves_nothing(isthmus: Isthmus, tmp_path: Path) -> None:
    for range_, line in (
        ("local.lrr=0.01..0.1", "did you mean 'local.lr'?"),
        ("local.lr=0.1..0.01", "its first number must be the smaller one"),
        ("local.lr", "write it as key=value"),
        ("fedprox.mu=0.1..1", "'fedprox.mu': method 'fedprox' is not in this study: add it with --method fedprox"),
        ("fedavg.fractio=0.1..1", "'fedavg' has no option 'fractio': did you mean 'fedavg.fraction'?"),
        ("data.train=0.1..1", "tune: 'data.train' has one value in each study"),
    ):
        done = isthmus(*TUNE, "--range", range_)
        assert done.code == 2
        assert line in done.err
        assert len(done.err.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def test_a_range_that_is_given_twice_is_refused(isthmus: Isthmus) -> None:
    done = isthmus("tune", "--range", "local.lr=0.1..1", "--range", "local.lr=0.01..1")
    assert (done.code, done.out) == (2, "")
    assert "--range local.lr is given 2 times: give it one range" in done.err


def test_a_flag_that_only_run_has_is_suggested_as_a_setting(isthmus: Isthmus) -> None:
    due = "unknown option '--split': did you mean --set partition.split=0.6,0.2,0.2?"
    assert due in isthmus("tune", "--split", "0.6,0.2,0.2").err
