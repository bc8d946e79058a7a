"""A project that Sentry watches: its Crons and its tracing work as with Celery's own beat, at default settings."""

from __future__ import annotations

from itertools import pairwise

import pytest

from support.wait import until

NEEDS = ("sentry_sdk",)
#: The entries fire once a minute, which is as often as Sentry Crons can watch one.
A_MINUTE = 150.0


@pytest.fixture(scope="module")
def monitored(open_project):
    made = open_project("sentry", "monitored")
    made.worker()
    made.beat()
    return made


@pytest.mark.parametrize(
    ("entry", "end"), [("job_good", "ok"), ("job_bad", "error"), ("plain_good", "ok"), ("plain_bad", "error")]
)
def test_a_fire_is_checked_in_when_it_is_sent_and_when_its_run_has_ended(monitored, entry: str, end: str):
    ended = until(lambda: monitored.journal(entry, end), A_MINUTE, f"{entry} is {end}", poll=0.2)[0]
    began = [one for one in monitored.journal(entry, "in_progress") if one["id"] == ended["id"]]
    assert len(began) == 1
    assert began[0]["config"] == {"schedule": {"type": "crontab", "value": "* * * * *"}, "timezone": "UTC"}


def test_no_fire_is_checked_in_twice(monitored):
    begun = [one["id"] for one in monitored.journal(event="in_progress")]
    assert len(begun) == len(set(begun))


def test_each_run_has_its_own_time_of_sending_and_its_own_trace(monitored):
    """Else the reported latency grows with each fire, and all runs are in one trace."""
    runs = monitored.until_journal("often", 3, "ran")
    assert len({one["trace"].partition("-")[0] for one in runs}) == len(runs)
    sent = [one["sent"] for one in monitored.until_journal("often", 3, "latency")]
    assert all(later - earlier > 1 for earlier, later in pairwise(sent)), "they fire every three seconds"
