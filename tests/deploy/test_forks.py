"""Forked processes do what they are asked, report how they ended, and end with the process that asked for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def run(code: str, tmp_path: Path) -> str:
    """Run code in a process of its own, which may be forked whatever threads this one has."""
    begin = "import os, sys, time\nfrom pathlib import Path\nfrom isthmus.deploy.forks import Forks\n"
    begin += f"here = Path({str(tmp_path)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fork_has_its_own_words_and_environment_and_reports_its_code(tmp_path: Path) -> None:
    said = run(
        """
        def main(words):
            (here / words[0]).write_text(os.environ["PLACE"] + str(os.getsid(0) == os.getpid()))
            return 7 if words[0] == "a" else 0

        forks = Forks(main)
        processes = [forks.start([name], {"PLACE": name + name}) for name in "ab"]
        for each in processes:
            each.wait()
        print([each.poll() for each in processes], "PLACE" in os.environ)
        """,
        tmp_path,
    )
    assert said == "[7, 0] False\n"
    assert [(tmp_path / name).read_text() for name in "ab"] == ["aaTrue", "bbTrue"]


def test_what_forks_need_is_loaded_once_and_not_in_the_process_that_asks(tmp_path: Path) -> None:
    said = run(
        """
        def load():
            import colorsys
            with (here / "loads").open("a") as loads:
                loads.write("x")

        forks = Forks(lambda words: 5 if "colorsys" in sys.modules else 6, load)
        processes = [forks.start([], dict(os.environ)) for _ in range(2)]
        for each in processes:
            each.wait()
        print([each.poll() for each in processes], "colorsys" in sys.modules)
        """,
        tmp_path,
    )
    assert said == "[5, 5] False\n"
    assert (tmp_path / "loads").read_text() == "x"


def test_errors_and_exits_are_codes(tmp_path: Path) -> None:
    said = run(
        """
        def main(words):
            if words[0] == "error":
                raise ValueError("seen in the log")
            sys.exit({"none": None, "three": 3, "text": "why"}[words[0]])

        forks = Forks(main)
        processes = [forks.start([name], dict(os.environ)) for name in ("error", "none", "three", "text")]
        for each in processes:
            each.wait()
        print([each.poll() for each in processes])
        """,
        tmp_path,
    )
    assert said == "[1, 0, 3, 1]\n"


def test_terminate_kills_what_the_fork_has_started_too(tmp_path: Path) -> None:
    said = run(
        """
        import subprocess

        def main(words):
            child = subprocess.Popen(["sleep", "60"])
            (here / "child").write_text(str(child.pid))
            time.sleep(60)

        process = Forks(main).start([], dict(os.environ))
        while not (here / "child").exists() or not (here / "child").read_text():
            time.sleep(0.01)
        print(process.poll())
        process.terminate()
        process.wait()
        print(process.poll())
        """,
        tmp_path,
    )
    assert said == f"None\n{-signal.SIGKILL}\n"
    child = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_nothing_starts_once_the_process_that_starts_others_is_gone(tmp_path: Path) -> None:
    said = run(
        """
        import signal

        forks = Forks(lambda words: time.sleep(60))
        process = forks.start([], dict(os.environ))
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        process.wait()
        print(process.poll())
        os.killpg(process.pid, signal.SIGKILL)
        try:
            forks.start([], {})
        except OSError as error:
            print(type(error).__name__)
        """,
        tmp_path,
    )
    assert said.splitlines()[0] == str(-signal.SIGKILL)
    assert said.splitlines()[1] in ("OSError", "BrokenPipeError")


def test_the_process_that_starts_others_ends_with_the_one_that_asks(tmp_path: Path) -> None:
    pid = run(
        """
        def main(words):
            (here / "pid").write_text(str(os.getppid()))
            return 0

        Forks(main).start([], dict(os.environ)).wait()
        print((here / "pid").read_text())
        """,
        tmp_path,
    )
    stat = Path(f"/proc/{pid.strip()}/stat")
    for _ in range(200):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        os.sched_yield()
        signal.sigtimedwait([], 0.01)
    pytest.fail("it is still there")
