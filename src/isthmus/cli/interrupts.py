"""What Ctrl-C and SIGTERM do before there is anything to end in good order; imports nothing that takes long."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn


def stop(*_: object) -> NoReturn:
    """Say that the command was stopped, and end the process at once."""
    os.write(2, b"isthmus: stopped\n")
    os._exit(130)


def on_interrupt(do: Callable[..., object] = stop) -> None:
    """Call `do` on Ctrl-C and on SIGTERM."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, do)
