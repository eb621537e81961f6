import tomllib
from pathlib import Path

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner

import isthmus
from isthmus.version import LAWS, VERSION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_that_of_the_project():
    """If they differ, install again: `make test` does."""
    assert PROJECT["version"] == VERSION == isthmus.__version__


def test_the_citation_says_what_the_project_says():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    citation = yaml.safe_load(text)
    assert citation["abstract"] == PROJECT["description"]
    for key in ("version", "license", "keywords", "authors"):
        assert citation[key] == PROJECT[key], key


def test_the_citation_is_of_its_format(tmp_path):
    command = ["--builtin-schema", "vendor.citation-file-format"]
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for content, code in ((text, 0), (text.replace("1.2.0", "0.9"), 1)):
        (tmp_path / "CITATION.cff").write_text(content, encoding="utf-8")
        done = CliRunner().invoke(check_jsonschema.main, [*command, str(tmp_path / "CITATION.cff")])
        assert done.exit_code == code, done.output


def test_figures_change_only_with_the_number_of_the_laws():
    """If this loss changes, raise LAWS in `version.py`, so that results of papers name the runs made before."""
    history = isthmus.run("fedavg", rounds=3, seed=0, local={"lr": 0.01}).runs[0].history
    losses = [value for _, name, value in history if name == "test_loss"]
    assert (LAWS, losses) == (2, pytest.approx([1.290678, 1.143938, 1.016838], abs=1e-5))
