"""``python -m soak [--seed 7] [--seconds 60] [--topology apart] [--plan .soak/7/plan.json] [--keep]``"""

from __future__ import annotations

import argparse
import dataclasses
import os
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path

from soak import plan as plans
from soak import report
from soak.checks import violations
from soak.run import Progress, Soak
from support import processes

ROOT = Path(__file__).resolve().parents[2] / ".soak"


def main() -> int:
    arguments = _parse(sys.argv[1:])
    # SIGTERM ends the processes of a soak, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = _plan(arguments)
    directory = ROOT / f"{plan.seed}-{time.strftime('%H%M%S')}-{os.getpid()}"
    directory.mkdir(parents=True)
    again = f"make soak SEED={plan.seed} SECONDS={plan.seconds:g} TOPOLOGY={plan.topology}"
    print(f"seed {plan.seed}, {plan.seconds:g} s, {plan.topology}; the same plan again: {again}", flush=True)
    try:
        story = Soak(plan, directory, progress=_progress()).run()
    finally:
        processes.close_guard()
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    found = violations(story)
    for line in report.summary(story):
        print(line)
    for line in report.findings(story, found):
        print(line)
    if not found:
        print("I1 to I5 hold" + (f"; kept in {directory}" if arguments.keep else ""))
        if not arguments.keep:
            shutil.rmtree(directory)
        return 0
    print(f"{len(found)} violations. Plan, history, journal and logs are in {directory}; the same plan again: {again}")
    return 1


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description="Breaks things under load and looks.")
    parser.add_argument("--seed", help="gives the plan; drawn if left out")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the load lasts (60)")
    parser.add_argument("--topology", choices=plans.TOPOLOGIES, help="where ledger and broker are; else by the seed")
    parser.add_argument("--plan", type=Path, help="carry out a plan.json, perhaps cut down by hand")
    parser.add_argument("--without", default="", help="faults to leave out, with commas: to see which it takes")
    parser.add_argument("--keep", action="store_true", help="keep plan, history, journal and logs in any case")
    return parser.parse_args(argv)


def _plan(arguments: argparse.Namespace) -> plans.Plan:
    if arguments.plan is not None:
        plan = plans.Plan.loads(arguments.plan.read_text())
    else:
        seed = arguments.seed or str(secrets.randbelow(10**6))
        plan = plans.make(seed, arguments.seconds, arguments.topology)
    without = arguments.without.split(",")
    return dataclasses.replace(plan, faults=tuple(fault for fault in plan.faults if fault.what not in without))


def _progress() -> Progress:
    """One line that is updated on a terminal; elsewhere, a line from time to time."""
    said = 0.0

    def show(line: str) -> None:
        nonlocal said
        now = time.monotonic()
        live = sys.stdout.isatty()
        if now - said >= (0.2 if live else 30):
            said = now
            print(f"\r\033[K{line}" if live else line, end="" if live else "\n", flush=True)

    return show


if __name__ == "__main__":
    sys.exit(main())
