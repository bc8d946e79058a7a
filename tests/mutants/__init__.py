"""Small deliberate mistakes, each of which a fast test must notice: ``make mutants``.

A mutant replaces one piece of text in one file of the package. The runner applies each one in a copy of the checkout,
runs the tests that the mutant names, and expects them to fail. :mod:`mutants.ledger`, :mod:`mutants.worker` and
:mod:`mutants.others` hold the lists, :mod:`mutants.__main__` is the runner.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    #: Relative to ``celery_orchestration/``.
    file: str
    #: Must occur exactly once in the file.
    old: str
    new: str
    #: The effect for users if this mistake were released.
    breaks: str
    #: Files or node ids, relative to ``tests/``. One failing test is enough.
    tests: tuple[str, ...]
    #: The reason, if no test can distinguish the mutant from the original. Then it must survive.
    equivalent: str = ""
