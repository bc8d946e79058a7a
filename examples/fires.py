"""Whether every fire of an entry is in the history, and only once. Pure: records in, findings out.

An entry with an interval is due at fixed times. The history has a record of each run, with the time for which it was
fired. Fires in a row that made no run, for the same reason, share a record: how many they were, and the due time of the
last. Those that were missed passed while no scheduler led; the first fire after that may have made a run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_orchestration.ledger import HistoryLine

SKIPPED, MISSED = "skipped", "missed"


@dataclass(frozen=True)
class Record:
    """A record of the history, as the ledger keeps it. Times are in ms."""

    id: str
    outcome: str
    arrived: int
    started: int | None
    ended: int
    recoveries: int
    #: None: it was not fired by the schedule.
    due: int | None
    #: How many fires it stands for.
    count: int

    @classmethod
    def read(cls, text: str) -> Record:
        line = HistoryLine.read(text)
        due = line.due if line.entry else None
        count = 1 if line.fires is None else line.fires
        return cls(line.id, line.outcome, line.arrived, line.started, line.ended, line.recoveries, due, count)

    @property
    def is_run(self) -> bool:
        return self.outcome not in (SKIPPED, MISSED)


@dataclass
class Account:
    """What became of the fires of an entry."""

    due: int = 0
    ran: int = 0
    skipped: int = 0
    missed: int = 0
    #: The longest time between a due time and the arrival of its run, in ms.
    latest: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.due:
            return "not due yet"
        return f"{self.due} due: {self.ran} made a run, {self.skipped} skipped, {self.missed} missed"


def account(first: int, last: int, every: int, records: Sequence[Record]) -> Account:
    """Accounts for an entry that was due every `every` ms from `first` to `last`. `records`: the latest first."""
    times = range(first, last + 1, every)
    found = Account(len(times))
    counted: Counter[int] = Counter()
    missed = []
    for one in reversed(records):
        if one.due is None:
            continue
        if one.outcome == MISSED:
            found.missed += one.count
            missed.append(one)
        elif one.outcome == SKIPPED:
            found.skipped += one.count
            counted.update(one.due - every * number for number in range(one.count))
        else:
            found.ran += 1
            found.latest = max(found.latest, one.arrived - one.due)
            counted[one.due] += 1
    found.problems += [f"due at {time}: {count} times in the history" for time, count in counted.items() if count > 1]
    found.problems += [f"due at {time}: it was not" for time in counted if time not in times]
    missing = [time for time in times if time not in counted]
    for one in missed:
        passed = [time for time in missing if time <= (one.due or 0)]
        missing = missing[len(passed) :]
        if len(passed) != one.count:
            found.problems.append(f"{one.count} were missed until {one.due}, and {len(passed)} are not in the history")
    found.problems += [f"due at {time}: not in the history" for time in missing]
    return found
