"""The status on one screen: urgent objects come first, however many there are and however small the window.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from celery_orchestration.cli.queries import OUTCOMES as OUTCOMES_OF_THE_COMMAND
from celery_orchestration.cli.queries import STATES as STATES_OF_THE_COMMAND
from celery_orchestration.cli.show.status import View, print_status
from celery_orchestration.errors import BadCall, UnknownJob
from celery_orchestration.operate import (
    Death,
    Disabled,
    JobStatus,
    Progress,
    QueueStatus,
    RunStatus,
    SchedulerStatus,
    Status,
    WorkerStatus,
)
from celery_orchestration.operate.models import OUTCOMES
from celery_orchestration.operate.status.filter import STATES, filtered
from celery_orchestration.operate.status.urgency import by_urgency, problems_of
from support.hostile import TEXTS

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


def ago(**time: float) -> datetime:
    return NOW - timedelta(**time)


def job(name: str, state: Any = "idle", **more: Any) -> JobStatus:
    common: dict[str, Any] = {
        "running": int(state == "running"), "max_running": 1, "keyed": False, "waiting": 0, "later": 0,
        "priority": "normal", "pool": "default", "oldest_arrival": None, "last_start": None, "last_end": None,
        "last_outcome": None, "last_success": None, "last_seconds": None, "failures": 0, "dead_letters": 0,
        "max_consecutive_failures": 5, "last_error": None, "disabled": None, "probe": None, "next_probe": None,
        "would_have_waited": {},
    }  # fmt: skip
    if state == "disabled":
        common["disabled"] = Disabled(by="failures", why="5 failures in a row", at=ago(minutes=3), failures=None)
    return JobStatus(name=name, state=state, **{**common, **more})


def run(of: str, state: Any = "running", **more: Any) -> RunStatus:
    common: dict[str, Any] = {
        "id": "01234567-89", "key": "", "priority": "normal", "retries": 0, "worker": "w1@host", "queue": "celery",
        "fence": None, "recoveries": 0, "arrived": NOW, "since": NOW, "seconds": 12.3, "expires": None, "reason": None,
    }  # fmt: skip
    return RunStatus(job=of, state=state, **{**common, **more})


def worker(name: str, state: Any = "idle", **more: Any) -> WorkerStatus:
    common: dict[str, Any] = {
        "host": "host", "pid": 1, "execution_pool": "prefork", "slots": 4, "running": int(state == "busy"), "done": 7,
        "failed": 1, "queues": ["celery"], "mode": "enforce", "since": NOW, "last_beat": NOW,
    }  # fmt: skip
    return WorkerStatus(name=name, state=state, **{**common, **more})


def status(**more: Any) -> Status:
    common: dict[str, Any] = {
        "namespace": "shop", "at": NOW, "paused": False, "running": 0, "max_running": None, "waiting": 0, "later": 0,
        "dead_letters": 0, "jobs": [], "runs": [], "waits": [], "workers": [], "died": [], "queues": [], "problems": [],
    }  # fmt: skip
    return Status(**{**common, **more})


def crowd(name: str = "shop.job{}") -> Status:
    """1,000 jobs, 200 workers, 100,000 waiting runs."""
    jobs = [job(name.format(f"{n:03}"), waiting=100, oldest_arrival=ago(hours=2)) for n in range(1000)]
    return status(
        running=300,
        waiting=100_000,
        later=7,
        jobs=jobs,
        runs=[run(one.name) for one in jobs[:300]],
        waits=[run(one.name, "waiting", reason=f"waiting for {one.name}: it has never ended") for one in jobs[:100]],
        workers=[worker(f"w{n}@host", "busy" if n < 50 else "idle") for n in range(200)],
        queues=[QueueStatus(name=f"q{n}", slots=n % 3, under_way=0, waiting=0) for n in range(50)],
        problems=[f"no live worker serves queue q{n}, where so much is to be handed over" for n in range(17)],
        died=[Death(name=f"dead{n}@host", at=ago(minutes=n), runs=1) for n in range(30)],
        scheduler=SchedulerStatus(leader="beat@host", since=ago(hours=1), standbys=["b"], entries=1000),
    )


def text_of(view: View, columns: int = 80) -> str:
    return "\n".join(line.plain.rstrip() for line in view.lines(columns))


# -- is everything all right?


def test_a_healthy_status_says_so():
    found = status(jobs=[job("a"), job("b", "running")], running=1, max_running=10, later=2, dead_letters=1)
    head = "shop: 1 running, 0 waiting, 2 not due yet, 1 dead letter, at most 10 at once"
    assert text_of(View(found), 120).splitlines()[0] == f"{head}; everything is all right"
    assert problems_of(found) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (status(problems=["no worker is alive"]), "no worker is alive"),
        (status(jobs=[job("a", "disabled")]), "disabled by failures: a"),
        (status(jobs=[job(n, overdue=True) for n in "abcde"]), "overdue: a, b, c and 2 more"),
    ],
)
def test_problems_come_first(found, problem):
    assert problems_of(found) == [problem]
    head, first, *_ = text_of(View(found)).splitlines()
    assert "all right" not in head
    assert first == f"! {problem}"


def test_a_job_that_a_person_disabled_is_not_wrong_and_one_that_fails_is_not_right():
    by_hand = Disabled(by="me@host", why="holidays", at=ago(days=1), failures=None)
    found = status(jobs=[job("a", "disabled", disabled=by_hand), job("b", failures=2, last_outcome="failed")])
    assert problems_of(found) == []
    assert (
        problems_of(status(jobs=[one.model_copy(update={"overdue": True}) for one in found.jobs if one.disabled])) == []
    )
    assert text_of(View(found)).splitlines()[0] == "shop: 0 running, 0 waiting; 1 failing, 1 disabled"
    after_failures = by_hand.model_copy(update={"failures": "5 failures in a row"})
    assert problems_of(status(jobs=[job("a", "disabled", disabled=after_failures)])) == ["disabled by failures: a"]


# -- jobs


def test_jobs_that_need_attention_come_first():
    jobs = [
        job("f idle"), job("e waiting", "waiting"), job("d running", "running"), job("c failing", failures=1),
        job("b overdue", overdue=True), job("a disabled", "disabled"), job("a disabled too", "disabled", overdue=True),
    ]  # fmt: skip
    assert [one.name for one in by_urgency(jobs)] == [
        "a disabled", "a disabled too", "b overdue", "c failing", "d running", "e waiting", "f idle"
    ]  # fmt: skip


BUSY = job(
    "shop.fetch_data",
    "running",
    priority="high",
    waiting=3,
    later=1,
    oldest_arrival=ago(minutes=12),
    failures=2,
    last_end=ago(minutes=3),
    last_outcome="failed",
    last_seconds=1.52,
    last_error="ConnectionError: nobody listens",
    next_fire=NOW + timedelta(seconds=45),
)


def test_a_job_takes_one_row_and_its_problems_are_below():
    lines = text_of(View(status(jobs=[BUSY])), 120).splitlines()[2:4]
    assert [re.split(r"\s{2,}", line) for line in lines] == [
        ["job", "state", "prio", "running", "waiting", "fails", "last run", "took", "next"],
        ["shop.fetch_data", "running", "high", "1/1", "4 (12 min)", "2/5", "3 min ago", "1.5 s", "in 45 s"],
    ]
    assert "\n    last error: ConnectionError: nobody listens" in text_of(View(status(jobs=[BUSY])), 120)


def test_a_status_fits_eighty_columns():
    [line] = [line for line in text_of(View(status(jobs=[BUSY]))).splitlines() if line.startswith("shop.f")]
    assert all(word in line for word in ("running", "1/1", "4 (12 min)", "2/5", "3 min ago", "in 45 s"))


def test_a_long_name_keeps_its_end():
    long = BUSY.model_copy(update={"name": "a.very.long.module.of.the.shop.tasks.fetch_data"})
    assert re.search(r"^…[\w.]*fetch_data  running", text_of(View(status(jobs=[long]))), re.M)
    assert "a.very.long.module.of.the.shop.tasks.fetch_data" in text_of(View(status(jobs=[long])), 200)


def test_why_a_job_is_disabled_overdue_or_would_have_waited_is_below_it():
    found = status(
        jobs=[
            job("a", "disabled", next_probe=NOW + timedelta(seconds=30)),
            job("b", overdue=True, last_success=ago(hours=5)),
            job("c", would_have_waited={"room of c": 3}),
            job("d", last_error="ValueError: long ago", last_outcome="succeeded"),
        ]
    )
    text = text_of(View(found))
    assert "    disabled 3 min ago: 5 failures in a row, retried in 30 s\n" in text
    assert "b    overdue " in text
    assert "    overdue: last success 5.0 h ago\n" in text
    assert "    would have waited 3 times for room of c\n" in text
    assert "long ago" not in text


# -- runs


def test_runs_show_their_progress_and_why_they_wait():
    progress = Progress(done=45, total=100, note="pages", at=NOW)
    found = status(
        running=2,
        waiting=1,
        runs=[run("a", progress=progress), run("b", "queued", worker=None, timed_out=NOW)],
        waits=[run("c", "waiting", reason="waiting for a: running on w1@host for 12 s", seconds=90)],
    )
    text = text_of(View(found), 120)
    assert re.search(r"^01234567  a    running    w1@host +12 s  45/100 pages$", text, re.M)
    assert re.search(r"^01234567  b    timed out  queue celery  12 s$", text, re.M)
    assert re.search(r"^01234567  c    90 s  waiting for a: running on w1@host for 12 s$", text, re.M)
    assert "45/100 █████████░░░░░░░░░░░ pages" in text_of(View(found, live=True), 120)
    narrow = text_of(View(found), 40)
    assert "\n    waiting for a: running on w1@host\n    for 12 s" in narrow


@pytest.mark.parametrize(
    ("done", "total", "bar"),
    [
        (0, 0, "  0/0 " + "█" * 20),
        (5, 4, "  5/4 " + "█" * 20),
        (1500, None, "1500"),
        (0.5, 1.0, " 50 % " + "█" * 10 + "░" * 10),
    ],
)
def test_odd_progress_has_a_valid_bar(done, total, bar):
    found = status(runs=[run("a", progress=Progress(done=done, total=total, note="", at=NOW))])
    assert text_of(View(found, live=True), 120).endswith(f"  {bar}")


def test_in_a_narrow_window_the_number_is_kept_and_the_bar_whole():
    progress = Progress(done=130, total=1000, note="row of a customer", at=NOW)
    found = status(runs=[run("examples.pipeline.process_data", progress=progress)])
    assert " 13 % █░░░░░░░░░" in text_of(View(found, live=True), 80)


# -- queues and workers


def test_queues_show_their_messages_and_their_workers():
    found = status(
        queues=[
            QueueStatus(name="a", depth=0, slots=4, under_way=0, waiting=0),
            QueueStatus(name="b", depth=12, slots=4, under_way=1, waiting=2),
            QueueStatus(name="c", depth=None, slots=0, under_way=0, waiting=3),
        ]
    )
    rows = text_of(View(found)).splitlines()[-3:]
    assert [row.split() for row in rows] == [
        ["c", "?", "nobody", "3"], ["b", "12", "4", "slots", "1", "2"], ["a", "0", "4", "slots"]
    ]  # fmt: skip


def test_workers_are_counted_first_and_the_dead_are_shown_first():
    found = status(workers=[worker("a"), worker("b", "busy"), worker("c", "dead"), worker("d", "draining")])
    text = text_of(View(found))
    assert "workers: 1 idle, 1 busy, 1 draining, 1 dead; 1 of 12 slots at work\n" in text
    assert re.findall(r"^(\w) +(?:idle|busy|draining|dead)", text, re.M) == ["c", "d", "b", "a"]


# -- on one screen


@pytest.mark.parametrize("height", [24, 40, 60, 200])
@pytest.mark.parametrize("columns", [60, 80, 200])
def test_very_many_jobs_and_workers_fit_into_the_window(columns, height):
    lines = text_of(View(crowd(), height=height, live=True), columns).splitlines()
    assert height - 3 <= len(lines) <= height
    assert sum(line.startswith("… ") and line.endswith(" more") for line in lines) >= (2 if height == 24 else 4)
    # Where one can scroll, all rows are shown.
    assert "\nworkers: 150 idle" in text_of(View(crowd(), height=height), columns)


def small() -> Status:
    """The example after its Redis was restarted."""
    jobs = [job("a", "waiting", overdue=True), job("b", "waiting"), job("c", "running")]
    waits = [run(one.name, "waiting", reason="the ledger may have forgotten something: " + "why " * 20) for one in jobs]
    queues = [QueueStatus(name=f"q{n}", depth=n, slots=2, under_way=0, waiting=0) for n in range(6)]
    problems = ["the ledger was restarted or failed over: its last writes may be lost; nothing starts"]
    leads = SchedulerStatus(leader="beat@host", since=NOW, entries=3)
    return status(
        jobs=jobs, runs=[run("c")], waits=waits, queues=queues, workers=[worker("w", "busy")], problems=problems,
        scheduler=leads,
    )  # fmt: skip


def test_problems_do_not_scroll_out_of_a_small_window():
    lines = text_of(View(small(), height=23)).splitlines()
    assert len(lines) <= 23
    assert "queues: 6, all served; messages: 15" in lines
    assert "workers: 0 idle, 1 busy, 0 draining, 0 dead; 1 of 4 slots at work" in lines
    assert any(line.startswith("w ") for line in text_of(View(small(), height=40)).splitlines())


def test_spare_lines_go_to_jobs_before_queues():
    queues = [QueueStatus(name=f"q{n}", depth=0, slots=2, under_way=0, waiting=0) for n in range(6)]
    found = status(jobs=[job(name) for name in "abc"], queues=queues, workers=[worker("w")])
    lines = text_of(View(found, height=14)).splitlines()
    assert [line[:1] for line in lines[3:6]] == ["a", "b", "c"]
    assert len(lines) == 14


def test_without_a_window_a_page_of_each_is_shown_and_the_rest_counted():
    text = text_of(View(crowd()))
    assert re.findall(r"^… (\d+) more$", text, re.M) == ["980", "280", "99987", "30", "180"]
    assert "… 7 more problems" in text
    assert "… 25 more died within the hour" in text


def test_the_whole_status_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    file = StringIO()
    print_status(crowd(), file, everything=True)
    assert len(re.findall(r"^shop.job\d+ ", file.getvalue(), re.M)) == 1000
    assert len(re.findall(r"^w\d+@host ", file.getvalue(), re.M)) == 200
    assert re.findall(r"^… (\d+) more$", file.getvalue(), re.M) == ["99907"], "the ledger lists so many waiting runs"


def test_only_terminals_get_colour():
    for terminal, env, coloured in (
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ):
        file = StringIO()
        console = Console(file=file, force_terminal=terminal, width=80, _environ=env)
        console.print(View(status(jobs=[job("a", "disabled")])))
        assert ("\x1b[" in file.getvalue() and "31m" in file.getvalue()) is coloured, env


@given(st.sampled_from([*TEXTS.values(), "x" * 200, "数据" * 40, "\n" * 30]), st.integers(20, 250), st.integers(5, 60))
def test_hostile_names_keep_to_the_window(name, columns, height):
    held = Disabled(by=name, why=name, at=NOW, failures=name)
    progress = Progress(done=1, total=3, note=name, at=NOW)
    found = status(
        jobs=[job(name, "disabled", disabled=held, last_error=name, failures=3, would_have_waited={name: 1})],
        runs=[run(name, id=name, worker=name, progress=progress)],
        waits=[run(name, "waiting", id=name, reason=name)],
        workers=[worker(name, queues=[name])],
        queues=[QueueStatus(name=name, slots=0, under_way=1, waiting=1)],
        problems=[name],
        died=[Death(name=name, at=NOW, runs=1)],
        scheduler=SchedulerStatus(leader=name, since=NOW),
    )
    for view in (View(found), View(found, height=height, live=True, note=name)):
        lines = [line.plain for line in view.lines(columns)]
        assert all(char.isprintable() for line in lines for char in line), lines
        assert [line for line in lines if cell_len(line) > columns] == []


# -- filtered


def mixed() -> Status:
    return status(
        running=3,
        waiting=9,
        later=4,
        dead_letters=5,
        jobs=[
            job("shop.fetch", "running", waiting=2, dead_letters=1),
            job("shop.images", "running", pool="images", later=1),
            job("bank.sum", "disabled", pool=None, overdue=True),
            job("bank.late", overdue=True),
        ],
        runs=[run("shop.fetch"), run("shop.images", worker="w2@host", queue="images.normal")],
        waits=[run("shop.fetch", "waiting"), run("bank.sum", "waiting", queue="bank")],
        workers=[worker("w1@host"), worker("w2@host", queues=["images.normal"]), worker("w3@host", queues=["bank"])],
        queues=[
            QueueStatus(name=name, slots=1, under_way=0, waiting=0)
            for name in ("bank", "celery", "images.granted", "images.normal")
        ],
        problems=["a problem"],
    )


def kept(found: Status) -> Any:
    return (
        [one.name for one in found.jobs],
        [one.job for one in (*found.runs, *found.waits)],
        [one.name for one in found.queues],
        [one.name for one in found.workers],
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            {"jobs": ["fetch"]},
            (["shop.fetch"], ["shop.fetch", "shop.fetch"], ["celery"], ["w1@host"]),
        ),
        (
            {"jobs": ["shop.*"]},
            (
                ["shop.fetch", "shop.images"],
                ["shop.fetch", "shop.images", "shop.fetch"],
                ["celery", "images.normal"],
                ["w1@host", "w2@host"],
            ),
        ),
        (
            {"pools": ["images"]},
            (["shop.images"], ["shop.images"], ["images.granted", "images.normal"], ["w2@host"]),
        ),
        ({"states": ["overdue"]}, (["bank.sum", "bank.late"], ["bank.sum"], ["bank"], ["w3@host"])),
        ({"states": ["disabled"], "jobs": ["BANK"]}, (["bank.sum"], ["bank.sum"], ["bank"], ["w3@host"])),
        ({"states": ["idle"], "jobs": ["images"]}, ([], [], [], [])),
    ],
)
def test_a_status_is_filtered_by_jobs_states_and_pools(asked, expected):
    found = filtered(mixed(), **asked)
    assert kept(found) == expected
    assert (found.problems, found.namespace) == (["a problem"], "shop")


def test_a_filtered_status_counts_only_its_jobs():
    found = filtered(mixed(), jobs=["shop"])
    assert (found.running, found.waiting, found.later, found.dead_letters) == (2, 2, 1, 1)
    whole = filtered(mixed())
    assert (whole.running, whole.waiting, whole.later, whole.dead_letters) == (3, 9, 4, 5)


def test_the_queues_that_jobs_are_sent_to_are_kept_though_nothing_is_there():
    found = filtered(mixed(), jobs=["late"], sent={"bank": ["bank.late"], "celery": ["shop.fetch"]})
    assert kept(found) == (["bank.late"], [], ["bank"], ["w3@host"])


def test_a_name_that_looks_like_a_pattern_is_found():
    assert [one.name for one in filtered(status(jobs=[job("a*?[b]"), job("ab")]), jobs=["*?["]).jobs] == ["a*?[b]"]


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"jobs": ["shop.fech"]}, UnknownJob, "matches 'shop.fech', did you mean 'shop.fetch'?"),
        ({"jobs": ["shop", "nothing.*"]}, UnknownJob, "matches 'nothing.*'"),
        ({"pools": ["image"]}, UnknownJob, "pool 'image', did you mean 'images'?"),
        ({"states": ["runing"]}, BadCall, "unknown state 'runing', did you mean 'running'?"),
    ],
)
def test_a_pattern_that_matches_nothing_says_so(asked, error, words):
    with pytest.raises(error) as caught:
        filtered(mixed(), **asked)
    assert words in str(caught.value)


def test_the_command_offers_what_there_is():
    assert (STATES_OF_THE_COMMAND, OUTCOMES_OF_THE_COMMAND) == (STATES, OUTCOMES)


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        (["observe", "observe"], "observe mode: everything starts at once"),
        (["observe", "enforce"], "observe mode on 1 of 2 workers: everything starts at once"),
    ],
)
def test_a_status_that_holds_nothing_back_says_so_below_its_head(modes, said):
    found = status(workers=[worker(f"w{n}@host", mode=mode) for n, mode in enumerate(modes)])
    assert text_of(View(found)).splitlines()[1].startswith(said)
    dead = [worker("w0@host", "dead", mode="observe"), worker("w1@host")]
    assert "observe" not in text_of(View(status(workers=dead)))
