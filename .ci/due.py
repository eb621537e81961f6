"""Print the tests of which the slow ones are due: those of rooms that changed since all slow tests passed.

A room is a folder of `src/isthmus` with that of its tests. Whoever has run `make test-slow` in a fresh clone says so in
the next commit, by the trailer `Slow-tests: passed`; what that commit changes counts as untested. Without such a
commit, all are due.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PASSED = "Slow-tests: passed"
ALSO = {
    "tests/audit": ("src/isthmus/privacy",),
    "tests/benchmarks": ("benchmarks", "src/isthmus/papers", "src/isthmus/report"),
    "tests/conformance": ("src/isthmus/federation", "src/isthmus/methods", "src/isthmus/nn"),
    "tests/deploy": ("src/isthmus/federation", "src/isthmus/privacy", "src/isthmus/protect", "src/isthmus/study"),
    "tests/docs": ("docs", "README.md", "examples"),
    "tests/protect": ("src/isthmus/federation", "src/isthmus/privacy"),
    "tests/study": ("src/isthmus/federation", "src/isthmus/methods", "src/isthmus/privacy"),
    "tests/test_locks.py": ("src/isthmus/deploy", "docs/hardening.md", "requirements"),
    "tests/test_wheel.py": ("Makefile", "requirements"),
}
"""What else tests are of, beside themselves and the room of their name."""
SLOW = re.compile(r"mark\.(slow|thinned)\b|\bslow_but\(")
SHARED = re.compile(r"(\.ci/.*|constraints\.txt|pyproject\.toml|src/isthmus/[^/]+|tests/(?!test_)[^/]+)")
"""Files that many rooms share."""


def due(changed: Iterable[str], tests: Iterable[str]) -> list[str]:
    """Return those of the tests, folders or modules, that are due when these files changed.

    >>> due(["src/isthmus/deploy/kits.py", "CHANGELOG.md"], ["tests/cli", "tests/deploy"])
    ['tests/deploy']
    """
    files = list(changed)

    def touched(places: Iterable[str]) -> bool:
        return any(file == place or file.startswith(f"{place}/") for file in files for place in places)

    if any(SHARED.fullmatch(file) for file in files):
        return list(tests)
    found = []
    for each in tests:
        room = each.removeprefix("tests/").removeprefix("test_")
        if touched((each, f"src/isthmus/{room}", *ALSO.get(each, ()))):
            found.append(each)
    return found


def slow_tests() -> list[str]:
    """Return the folders of tests, and the modules beside them, with slow tests."""
    files = [path for path in Path("tests").rglob("test_*.py") if SLOW.search(path.read_text(encoding="utf-8"))]
    return sorted({"/".join(path.parts[:2]) for path in files})


def main() -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()

    since = git("log", "-1", "--format=%H", f"--grep=^{PASSED}$")
    tests = slow_tests()
    changed = git("diff", "--name-only", "--no-renames", f"{since}^", "HEAD").splitlines() if since else []
    found = due(changed, tests) if since else tests
    sys.stdout.write(" ".join(found))


if __name__ == "__main__":
    main()
