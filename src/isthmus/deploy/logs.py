"""What the processes of a federation log: a few lines for a person, and all of FLARE's in a file of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG = "log.txt"
"""The log that a person reads: Isthmus's lines, and nothing else."""
ENGINE_LOG = "flare.txt"
"""FLARE's log. It calls much an error that is none, such as a party that has ended its job before another."""
OURS = "isthmus"
FORMAT = "%(asctime)s - %(levelname)s - %(message)s"


def printable(text: Any, longest: int | None = None) -> str:
    """A text from another machine, fit to be a part of a line in a log or in a terminal.

    >>> printable("gone\\x1b[2J" + 400 * "!", 300)[:12]
    'gone [2J!!!!'
    """
    letters = "".join(letter if letter.isprintable() else " " for letter in str(text)[:longest])
    return " ".join(letters.split())


class LineFormatter(logging.Formatter):
    """Writes a line for each message, whatever texts of other machines are in it; those of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in the standard library
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name in the standard library
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"    {' ' * (len(line) - len(line.lstrip()))}{printable(line)}" for line in lines)


def log_config(default: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return FLARE's configuration of logging with two files instead of its five outputs.

    Arguments:
        default: what FLARE would use; its settings of files stay.
        folder: the kit. Its processes and those of its jobs write our lines into one file there.
    """
    file = default["handlers"]["logFileHandler"]
    handlers = {
        "ours": {**file, "level": "INFO", "formatter": "ours", "filename": str(folder / LOG)},
        "engine": {**file, "filename": ENGINE_LOG},
    }
    loggers = {
        "root": {"level": "INFO", "handlers": ["engine"]},
        OURS: {"level": "INFO", "handlers": ["ours"], "propagate": False},
    }
    formatters = {**default["formatters"], "ours": {"()": f"{__name__}.{LineFormatter.__name__}", "fmt": FORMAT}}
    return {**default, "formatters": formatters, "filters": {}, "handlers": handlers, "loggers": loggers}
