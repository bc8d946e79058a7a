"""The example by its schedule while schedulers are killed at random."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.workers import PROJECT, environment


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_fire_is_accounted_for_while_either_scheduler_is_killed_at_random(
    scratch: Path, started_with: Callable[[str, str], list[psutil.Process]]
) -> None:
    """One minute of ``make endurance``, at a pace at which all three jobs are due."""
    env = {**environment(), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "examples.endurance", "--minutes", "1", "--pace", "80", "--seed", "7"]
    ended = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "every fire is accounted for" in ended.stdout
    due = {job: int(count) for job, count in re.findall(r"^(\w+): (\d+) due", ended.stdout, re.M)}
    assert due["fetch_data"] > 50
    assert due["process_data"] > 25
    assert due["cleanup"] > 0
    assert re.search(r"SIGKILL, one stood by: [1-9]", ended.stdout)
    assert (started_with("TMPDIR", str(scratch)), list(scratch.iterdir())) == ([], [])
