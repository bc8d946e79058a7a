"""How many messages a worker fetches."""

import pytest

from celery_orchestration.worker.fetch.amount import MOST, amount
from celery_orchestration.worker.fetch.durations import LONG, Durations


def ask(**known):
    return amount(**{"room": 16, "slots": 4, "running": [], "waiting": [], "typical": 1.0, "read_ahead": 1.0, **known})


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ({}, 4),  # unknown durations count as long: one for each slot
        ({"running": [60.0]}, 3),
        ({"running": [60.0] * 4}, 0),
        ({"running": [60.0] * 3, "waiting": [1.0]}, 0),
        ({"room": 2}, 2),
        ({"room": 0}, 0),
        ({"room": None, "typical": 0.0001}, MOST),
        ({"typical": 0.01}, 16),  # never more than the prefetch count
        ({"typical": 0.5}, 8),  # two for each slot within a second
        ({"typical": 0.5, "running": [60.0] * 3}, 2),  # behind long runs nothing waits
        ({"typical": 0.5, "running": [60.0] * 4}, 0),
        ({"typical": 0.01, "running": [60.0] * 4}, 0),
        ({"typical": 0.1, "running": [0.05] * 4, "waiting": [0.1] * 12, "room": 4}, 0),  # more than half is still here
        ({"typical": 0.1, "running": [0.05] * 4, "waiting": [0.1] * 4, "room": 12}, 12),
        ({"typical": 0.01, "read_ahead": 0.0}, 4),  # no reading ahead
        ({"typical": 0.01, "waiting": [LONG]}, 3),  # a long one waits here already
        ({"slots": 1, "typical": 0.05, "running": [30.0]}, 0),
        ({"slots": 0}, 0),
        ({"running": [0.0] * 4}, 0),  # what takes long is not read ahead, however soon a slot is free
    ],
)
def test_the_number_of_messages_to_fetch_follows_from_slots_and_durations(known, wanted):
    assert ask(**known) == wanted


def test_a_job_that_has_not_run_yet_counts_as_long():
    durations = Durations(unknown=1.0)
    assert durations.typical("a") == durations.mixed == 1.0


def test_the_latest_runs_count_most():
    durations = Durations(unknown=1.0)
    for seconds in [0.1] * 5 + [10.0] * 20:
        durations.ran("a", seconds)
    assert durations.typical("a") == pytest.approx(10.0, rel=0.05)


def test_short_tasks_that_keep_coming_are_read_ahead_soon():
    durations = Durations(unknown=1.0)
    durations.ran("short", 0.01)
    for _ in range(20):
        durations.came("short")
    assert ask(typical=durations.mixed) == 16


def test_one_long_task_in_a_hundred_is_enough_to_be_careful():
    durations = Durations(unknown=1.0)
    durations.ran("short", 0.01)
    durations.ran("long", 3600)
    for _ in range(50):
        durations.came("short")
    durations.came("long")
    assert ask(typical=durations.mixed) == 4
