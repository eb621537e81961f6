"""A person reads Isthmus's lines; FLARE's are in a file of their own."""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from isthmus.deploy.logs import ENGINE_LOG, LOG, log_config


def default() -> dict[str, object]:
    """FLARE's own configuration."""
    found = importlib.util.find_spec("nvflare.fuel.utils.log_utils")
    assert found is not None
    assert found.origin is not None
    return dict(json.loads((Path(found.origin).parent / "log_config.json").read_text()))


def test_lines_of_the_engine_do_not_reach_the_log_of_a_person(tmp_path: Path) -> None:
    """In a process of its own, because logging is configured once for a process."""
    (tmp_path / "config.json").write_text(json.dumps(log_config(default(), tmp_path)))
    script = (
        "import json, logging, sys; from pathlib import Path\n"
        "from nvflare.fuel.utils.log_utils import apply_log_config\n"
        "apply_log_config(json.loads(Path(sys.argv[1], 'config.json').read_text()), sys.argv[1])\n"
        "logging.getLogger('nvflare.private.fed').error('noise')\n"
        "logging.getLogger('some.library').warning('noise')\n"
        "logging.getLogger('isthmus.deploy.remote').info('party north is back')\n"
        "logging.getLogger('isthmus.deploy.remote').debug('detail')\n"
        "text = 'x\\n2026-01-01 - WARNING - forged\\x1b[2J'\n"
        "logging.getLogger('isthmus.deploy.remote').warning('no action %s', text)\n"
        "try:\n    raise ValueError(text)\n"
        "except ValueError:\n    logging.getLogger('isthmus.deploy.remote').exception('failed')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    lines = (tmp_path / LOG).read_text().splitlines()
    assert [line.split(" - ", 1)[1] for line in lines if line[0] != " "] == [
        "INFO - party north is back",
        "WARNING - no action x 2026-01-01 - WARNING - forged [2J",
        "ERROR - failed",
    ]
    assert lines[-1] == "    2026-01-01 - WARNING - forged [2J"
    assert (tmp_path / ENGINE_LOG).read_text().count("noise") == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.json", ENGINE_LOG, LOG]


def test_levels_are_those_of_the_logging_module() -> None:
    config = log_config(default(), Path("kit"))
    assert all(logging.getLevelName(each["level"]) == logging.INFO for each in config["loggers"].values())
