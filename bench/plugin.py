"""(f) How much time the plugin adds to every ``celery`` command. Celery loads the entry points of its group with any
command.

"Without" is the same environment, except that the entry point is not found: the first directory on the path has
metadata of the same distribution without it. "With" also has such a directory, with the entry point, so that both
search the same paths. Commands alternate. The figure is the median over all rounds of the difference within a round: in
time, and in processor time, which is less affected by other programs.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from importlib.metadata import distribution
from pathlib import Path
from statistics import median
from typing import Any

from bench.stage import Others, Stage
from support.workers import environment

COMMANDS = (("--version",), ("--help",), ("report",))
GROUP = "celery.commands"


def measure(stage: Stage) -> dict[str, Any]:
    with_it, without = (_environment(stage.directory / name, name == "with") for name in ("with", "without"))
    for env, expected in ((with_it, True), (without, False)):
        if ("orchestration" in _output(("--help",), env)) is not expected:
            raise RuntimeError("the plugin is there, or not, where it should not be")
    results: dict[str, Any] = {}
    for command in COMMANDS:
        others, rounds = Others(), []
        for number in range(stage.size.plugin_rounds):
            # The order alternates between rounds.
            order = (True, False) if number % 2 else (False, True)
            rounds.append({plugin: _taken(command, with_it if plugin else without) for plugin in order})
        (ms, cpu), (without_ms, without_cpu) = (_columns(rounds, plugin) for plugin in (True, False))
        added = [a - b for a, b in zip(ms, without_ms, strict=True)]
        results[" ".join(command)] = {
            "added_ms": median(added),
            "added_low": min(added),
            "added_high": max(added),
            "added_cpu_ms": median(a - b for a, b in zip(cpu, without_cpu, strict=True)),
            "with_ms": median(ms),
            "without_ms": median(without_ms),
            "others": others.share(),
        }
        stage.say(f"plugin: celery {' '.join(command)}: {median(added):.0f} ms added")
    return results


def _columns(rounds: list[dict[bool, tuple[float, float]]], plugin: bool) -> tuple[list[float], list[float]]:
    return [one[plugin][0] for one in rounds], [one[plugin][1] for one in rounds]


def _environment(directory: Path, with_plugin: bool) -> dict[str, str]:
    """The directory with the metadata, in which the entry point is found, or not."""
    ours = distribution("celery_orchestration")
    metadata = directory / f"celery_orchestration-{ours.version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {ours.name}\nVersion: {ours.version}\n")
    [point] = ours.entry_points.select(group=GROUP)
    if with_plugin:
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{point.name} = {point.value}\n")
    return environment(directory)


def _output(command: tuple[str, ...], env: dict[str, str]) -> str:
    arguments = [sys.executable, "-m", "celery", *command]
    return subprocess.run(arguments, env=env, capture_output=True, text=True, check=True).stdout


def _taken(command: tuple[str, ...], env: dict[str, str]) -> tuple[float, float]:
    """Time and processor time, ms."""
    begun, used = time.perf_counter(), _used()
    _output(command, env)
    return 1000 * (time.perf_counter() - begun), 1000 * (_used() - used)


def _used() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime
