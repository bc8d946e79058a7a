"""The output of ``explain``: the answer first, on one screen, and lines that can be copied."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, get_args

import pytest

from celery_orchestration.cli.show.explain import explanation_lines, print_explanation
from celery_orchestration.operate.clock import lasting, took
from celery_orchestration.operate.explain.chain import Step, summary
from celery_orchestration.operate.explain.models import Cause, Explanation, Link, OptionValue
from celery_orchestration.operate.explain.root_cause import RootCauseFinder
from celery_orchestration.operate.models import Ended, QueueStatus, RunStatus

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
FETCH, PROCESS = "examples.pipeline.fetch_data", "examples.pipeline.process_data"
FIX = f"celery -A examples.pipeline orchestration enable {FETCH}"
SOURCES = get_args(OptionValue.model_fields["source"].annotation)


def explanation(**more: Any) -> Explanation:
    text = f"{FETCH} was disabled 4 s ago: 5 failures in a row, the last: ConnectionError: nobody listens"
    last = Ended(
        id="r", job=PROCESS, outcome="succeeded", retries=0, key="", arrived=NOW, started=NOW, ended=NOW, seconds=1.04,
        waited_seconds=0, waited_for=None, worker="w1@host", fence=1, recoveries=0, error=None,
    )  # fmt: skip
    common: dict[str, Any] = {
        "about": PROCESS, "job": PROCESS, "run": None, "at": NOW, "summary": f"{PROCESS} waits for {FETCH}: {text}",
        "root": Cause(code="disabled_by_failures", job=FETCH, text=text, wrong=True, fix=FIX),
        "chain": [Link(job=PROCESS, run=None, text=f"waiting for {FETCH}: it is disabled"),
                  Link(job=FETCH, run=None, text=f"the job is disabled: {text}")],
        "last": last, "next_fire": NOW + timedelta(seconds=50),
        "queue": QueueStatus(name="celery", depth=1, slots=1, under_way=0, waiting=0),
        "options": [OptionValue(name=f"an_option_{n}", value=str(n), source=SOURCES[n % 4]) for n in range(26)],
    }  # fmt: skip
    return Explanation(**{**common, **more})


def text_of(found: Explanation, width: int = 80) -> list[str]:
    return [line.plain for line in explanation_lines(found, width)]


def test_the_answer_and_every_option_fit_on_a_small_screen():
    lines = text_of(explanation())
    assert len(lines) < 23
    assert lines[0].startswith(f"{PROCESS} waits for {FETCH}:")
    assert all(f"an_option_{n} {n}" in " ".join(map(str.strip, lines)) for n in range(26))
    said = [line.split(":")[0] for line in lines]
    assert said.index("options written") < said.index("recurring defaults") < said.index("defaults")


def test_options_of_every_source_are_shown():
    for source in SOURCES:
        assert text_of(explanation(options=[OptionValue(name="x", value="1", source=source)]))[-1].endswith(": x 1")


def test_a_line_to_copy_is_whole(tmp_path):
    with (tmp_path / "out").open("w+") as file:
        print_explanation(explanation(), file)
        file.seek(0)
        lines = file.read().splitlines()
    assert f"   -> {FIX}" in lines
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines if "->" not in line)


def test_a_value_in_force_that_differs_from_the_written_one_is_shown():
    option = OptionValue(name="max_running", value="2", source="written", in_force="1")
    lines = text_of(explanation(options=[option]))
    assert lines[-2:] == ["options written: max_running 2", "in force: max_running 1, as several releases are live"]


def test_counts_of_one_are_singular():
    assert "queue    celery: 1 message, 1 slot of live workers" in text_of(explanation())


# -- in one sentence


def step(job: str, *words: str) -> Step:
    return Step(job=job, run=None, words=list(words), found={})


@pytest.mark.parametrize(
    ("chain", "text", "said"),
    [
        ([step("a")], "its next run is due in 5 s", "a: its next run is due in 5 s"),
        ([step("a")], "a has been running on w for 5 s", "a has been running on w for 5 s"),
        ([step("a", "room", "a"), step("a")], "a has been running", "a waits for room: a has been running"),
        ([step("a", "behind", "a"), step("a")], "a has been", "a waits for another run of it: a has been"),
        ([step("a"), step("b"), step("c")], "c is off", "a waits for b, which waits for c: c is off"),
    ],
)
def test_the_summary_is_one_sentence(chain, text, said):
    assert summary("a", chain, Cause(code="running", job="a", text=text)) == said


def test_a_retry_that_is_not_due_says_what_it_comes_after():
    retried = RunStatus(
        id="r", job="a", state="later", key="", priority="normal", retries=2, worker=None, queue="celery", fence=None,
        recoveries=0, arrived=NOW, since=NOW, seconds=1, expires=None, reason=None,
    )  # fmt: skip
    due = Step(job="a", run=retried, words=["due", "01-01 00:00:09"], found={})
    finder = RootCauseFinder({"jobs": {"a": {"last_error": "ValueError: no"}}})
    text = "a is not due before 01-01 00:00:09"
    assert finder.root([due]).text == f"{text}: it is retried, after ValueError: no"
    called = Step(job="a", run=retried.model_copy(update={"retries": 0}), words=due.words, found={})
    assert finder.root([called]).text == text


# -- how long: the same words in every command


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (119.4, "119 s"), (119.6, "2 min"), (3599, "60 min"), (7200, "2.0 h"), (10**5, "1.2 d")],
)
def test_durations_are_shown_in_the_largest_fitting_unit(seconds, said):
    assert lasting(seconds) == said


def test_the_duration_of_a_run_is_shown_in_seconds():
    assert [took(seconds) for seconds in (0.04, 1.5, 9.96, 60.2, 10_800)] == ["0.0 s", "1.5 s", "10 s", "60 s", "3.0 h"]
