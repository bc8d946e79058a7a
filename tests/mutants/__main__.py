"""Applies each mutant in a copy of the checkout, and checks that its tests fail."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

from mutants import Mutant, ledger, others, worker

MUTANTS: list[Mutant] = [*ledger.MUTANTS, *worker.MUTANTS, *others.MUTANTS]
ROOT = Path(__file__).parents[2]
#: Seconds. A mutant that makes its tests hang was noticed as well.
TIMEOUT = 120
#: Exit codes of pytest. 1 may also mean an error after all tests had passed.
PASSED, FAILED = 0, 1
#: pytest's summary of failures.
FAILURES = re.compile(r"\b[1-9]\d* (failed|error)")


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    #: caught | survived | stale (the text is not there exactly once) | broken (the tests could not be run).
    what: str
    seconds: float
    output: str = ""

    @property
    def is_good(self) -> bool:
        return self.what == ("survived" if self.mutant.equivalent else "caught")


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="run this mutant only; may be repeated")
    parser.add_argument("--processes", type=int, default=2, help="how many are tried at a time (%(default)s)")
    parser.add_argument("--list", action="store_true", help="show the mutants and what each would break")
    options = parser.parse_args()
    names = [mutant.name for mutant in MUTANTS]
    unknown = sorted(set(options.only or ()) - set(names))
    if unknown or len(names) != len(set(names)):
        parser.error(f"unknown mutants: {', '.join(unknown)}" if unknown else "two mutants have the same name")
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name} ({mutant.file}): {mutant.breaks}")
        return 0
    return judge(chosen, options.processes)


def judge(mutants: list[Mutant], processes: int) -> int:
    begun = monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(processes):
            copies.put(copied(Path(directory) / str(number)))
        first = copies.get()
        if not tests_pass_unchanged(mutants, first):
            return 1
        copies.put(first)

        def in_some_copy(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return tried(mutant, copy)
            finally:
                copies.put(copy)

        verdicts = []
        with ThreadPoolExecutor(processes) as threads:
            for number, verdict in enumerate(threads.map(in_some_copy, mutants), 1):
                verdicts.append(verdict)
                show(verdict, f"{number}/{len(mutants)}")
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    caught = sum(verdict.what == "caught" for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} mutants were caught, in {monotonic() - begun:.0f} s", flush=True)
    for verdict in bad:
        print(f"{verdict.what}: {verdict.mutant.name}")
    return 1 if bad else 0


def show(verdict: Verdict, number: str) -> None:
    mutant = verdict.mutant
    print(f"{number:>7} {verdict.what:8} {verdict.seconds:5.1f} s  {mutant.name}", flush=True)
    if verdict.is_good:
        return
    print(f"        {mutant.file}: {mutant.breaks}\n        tests: {' '.join(mutant.tests)}")
    if mutant.equivalent and verdict.what == "caught":
        print("        It is listed as equivalent, but a test noticed it: correct the list.")
    if verdict.output:
        print(verdict.output)


def copied(to: Path) -> Path:
    """Without .venv, .git and the like, and without compiled files."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info"))
    return to


def tests_pass_unchanged(mutants: list[Mutant], copy: Path) -> bool:
    """Otherwise every mutant would seem to be caught."""
    print("The tests without a mutant ...", flush=True)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    whole_files = {test for test in tests if "::" not in test}
    code, output = pytest(
        [test for test in tests if test in whole_files or test.split("::")[0] not in whole_files], copy
    )
    if code != PASSED:
        print(f"{output}\nThe tests fail without a mutant: correct that first")
    return code == PASSED


def tried(mutant: Mutant, copy: Path) -> Verdict:
    begun = monotonic()
    path = copy / "celery_orchestration" / mutant.file
    text = path.read_text() if path.exists() else ""
    if text.count(mutant.old) != 1:
        return Verdict(mutant, "stale", 0, f"        the text occurs {text.count(mutant.old)} times: {mutant.old}")
    write(path, text.replace(mutant.old, mutant.new))
    try:
        code, output = pytest(mutant.tests, copy, "--exitfirst", timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        code, output = FAILED, "1 failed: it took too long"
    finally:
        write(path, text)
    what = "survived" if code == PASSED else "caught" if code == FAILED and FAILURES.search(output) else "broken"
    return Verdict(mutant, what, monotonic() - begun, output if what == "broken" else "")


def write(path: Path, text: str) -> None:
    path.write_text(text)
    # Python compares only size and second of change: it might use a compiled file of the old text.
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)


def pytest(tests: list[str] | tuple[str, ...], copy: Path, *more: str, timeout: float | None = None) -> tuple[int, str]:
    """The copy comes first on the path, before the checkout that is installed. The seed makes each run the same."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    command += [
        "--hypothesis-seed=0",
        "-W",
        "ignore::pytest.PytestUnraisableExceptionWarning",
        *more,
        *(f"tests/{test}" for test in tests),
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    return done.returncode, done.stdout[-3000:] + done.stderr[-1000:]


if __name__ == "__main__":
    sys.exit(main())
