"""One side of a comparison, in a process of its own.

The comparison writes requests to the process, a line of JSON each, and reads a line of JSON for each: `learn` trains
anew and answers the test accuracy, `turn` answers the milliseconds of some rounds. This module needs nothing but the
standard library, for it is imported in the peers' environments, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Side:
    """Another process that trains on the parties of a file.

    Arguments:
        python: that runs it.
        script: which calls `serve`.
        parties: the file of the parties.
        options: of training, the same for all sides.
    """

    def __init__(
        self, python: Path, script: Path, parties: Path, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        words = [str(python), str(script), str(parties), json.dumps(options)]
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **one_thread, **environment, "PYTHONPATH": ""},
        )

    def learn(self, rounds: int) -> float:
        """Test accuracy after so many rounds from new weights."""
        return float(self._ask(do="learn", rounds=rounds))

    def turn(self, rounds: int) -> list[float]:
        """Milliseconds of so many rounds."""
        return [float(ms) for ms in self._ask(do="turn", rounds=rounds)]

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SystemExit(f"{self._process.args[1]} ended without an answer: see its error above")
        return json.loads(line)


def serve(learn: Callable[[int], float], turn: Callable[[int], list[float]]) -> None:
    """Answer requests until there are no more; what the peer prints goes nowhere."""
    with os.fdopen(os.dup(1), "w") as answers, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        for line in sys.stdin:
            request = json.loads(line)
            answer = {"learn": learn, "turn": turn}[request["do"]](request["rounds"])
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
