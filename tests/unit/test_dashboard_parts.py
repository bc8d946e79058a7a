"""The pure parts of the dashboard: filters, redaction, passwords, causes, drawings.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from xml.etree import ElementTree

import pytest
from pydantic import BaseModel

from celery_orchestration import web
from celery_orchestration.errors import BadCall, ConfigurationError
from celery_orchestration.operate.graph.dependency_graph import DependencyGraph, Needs
from celery_orchestration.operate.models import Disabled, Ended, JobStatus, RunState, RunStatus, Status
from celery_orchestration.operate.status.findings import find_root_causes
from celery_orchestration.web import auth, filters, formatting, redaction
from celery_orchestration.web.auth import Attempts, BadCredentials, Credentials, Sessions, hash_password, hash_token
from celery_orchestration.web.pages import dead_letters, job, runs, timeline
from celery_orchestration.web.svg import bands, graph, spark
from celery_orchestration.web.svg import timeline as drawn
from celery_orchestration.web.svg.timeline import Span, Window
from support.hostile import TEXTS

NOW = datetime(2030, 1, 31, 12, 0, tzinfo=timezone.utc)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


# -- filters


def test_a_filter_has_fields_and_words() -> None:
    found = filters.parse('job:fetch state:waiting since:2h "two words" timeout', ("job", "state", "since"))
    assert found.terms == {"job": ("fetch",), "state": ("waiting",), "since": ("2h",)}
    assert found.words == ("two words", "timeout")
    assert found.holds("job", "shop.fetch_data")
    assert not found.holds("state", "running")
    assert found.holds("key", "anything")
    assert found.mentions("a Timeout of two words")
    assert found.since(NOW) == NOW - timedelta(hours=2)


def test_several_values_of_one_field_match_any_of_them() -> None:
    found = filters.parse("state:waiting state:running", ("state",))
    assert found.holds("state", "running")
    assert found.holds("state", "waiting")


def test_a_filter_that_is_not_understood_says_so() -> None:
    assert "jib: is no field here" in filters.parse("jib:x", ("job",)).mistakes[0]
    assert "since:yesterday is no time" in filters.parse("since:yesterday", ("since",)).mistakes[0]


@pytest.mark.parametrize("text", TEXTS.values())
def test_a_filter_of_any_text_is_read(text: str) -> None:
    filters.parse(text, ("job",))
    if '"' not in text and text.strip():
        assert filters.parse(filters.quoted("job", text), ("job",)).holds("job", text)


# -- redaction


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'user': 'ann', 'password': 'hunter2'}", "{'user': 'ann', 'password': •••}"),
        ('{"api_key": "abc", "n": 1}', '{"api_key": •••, "n": 1}'),
        ("{'token': 'it\\'s', 'x': 1}", "{'token': •••, 'x': 1}"),
        ("{'AUTH_TOKEN': b'abc'", "{'AUTH_TOKEN': •••"),
        ("call(secret=12, n=3)", "call(secret=•••, n=3)"),
        ("{'password': 'cut off her", "{'password': •••"),
        ("{'user': 'ann'}", "{'user': 'ann'}"),
        ("{'token': {'id': 7, 'value': 'hunter2'}, 'x': 1}", "{'token': •••, 'x': 1}"),
        ("{'passwords': ['hunter2', 'hunter3'], 'x': 1}", "{'passwords': •••, 'x': 1}"),
        ("({'deep': [{'secret': ('hunter2', ')')}]}, 1)", "({'deep': [{'secret': •••}]}, 1)"),
        ("pay(card=Card(number='4111', cvv=123), n=3)", "pay(card=•••, n=3)"),
        ("{'session': <Session of ann, 7>, 'x': 1}", "{'session': •••, 'x': 1}"),
        ("{'auth': {'name': 'ann', 'cut': ['off", "{'auth': •••"),
    ],
)
def test_values_of_keys_that_look_like_secrets_are_left_out(text: str, shown: str) -> None:
    assert redaction.redacted(text) == shown


def test_long_texts_are_redacted_quickly() -> None:
    for part in ("a", "a.", "token", "{'token': ", "'token'", "\\"):
        began = time.perf_counter()
        redaction.redacted(part * (4096 // len(part)))
        assert time.perf_counter() - began < 1


def test_secrets_within_arguments_are_left_out() -> None:
    found = redaction.as_text(redaction.redacted, [{"deep": {"password": {"a": "hunter2"}}, "x": 1}])
    assert "hunter2" not in found
    assert '"x": 1' in found


def test_a_function_for_arguments_that_fails_shows_nothing() -> None:
    assert redaction.function_of("json:loads")("not json") == redaction.HIDDEN
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        redaction.function_of("no_such_module:f")


# -- who it is


def test_a_password_is_known_by_its_hash_alone() -> None:
    users = Credentials.read(f"ann:operator:{hash_password('right')}")
    assert users.with_password("ann", "right") == auth.Identity("ann", "operator")
    assert users.with_password("ann", "wrong") is None
    assert users.with_password("bob", "right") is None
    assert hash_password("right") != hash_password("right")


def test_a_token_is_no_password_and_a_password_no_token() -> None:
    users = Credentials.read(f"ann:viewer:{hash_password('right')}\nbot:operator:{hash_token('abc')}")
    assert users.with_token("abc") == auth.Identity("bot", "operator")
    assert users.with_token("right") is None
    assert users.with_password("bot", "abc") is None


@pytest.mark.parametrize(
    "line", ["ann", "ann:boss:x", "ann:viewer:plain text", ":viewer:sha256$" + "0" * 64, "ann:viewer:scrypt$9$9$9$$"]
)
def test_a_line_that_is_wrong_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(BadCredentials, match="line 2"):
        Credentials.read(f"# users\n{line}")


def test_a_session_ends_and_cannot_be_forged() -> None:
    now = [0.0]
    sessions = Sessions(b"secret", lambda: now[0])
    session, cookie = sessions.begin("ann")
    assert sessions.read(cookie) == session
    assert sessions.read(cookie[:-1] + ("A" if cookie[-1] != "A" else "B")) is None
    assert Sessions(b"another", lambda: now[0]).read(cookie) is None
    assert sessions.is_csrf(session, sessions.csrf(session))
    assert not sessions.is_csrf(sessions.begin("ann")[0], sessions.csrf(session))
    now[0] = auth.SESSION_SECONDS + 1
    assert sessions.read(cookie) is None


def test_after_five_failures_one_has_to_wait_a_minute() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(5):
        assert not attempts.begin(["a", "name"])
    assert attempts.begin(["a"]) == pytest.approx(60)
    assert attempts.begin(["b", "name"]) > 0
    assert not attempts.begin(["b"])
    now[0] = 61
    assert not attempts.begin(["a"])


def test_a_successful_login_resets_the_failed_attempts() -> None:
    attempts = Attempts(lambda: 0.0)
    for _ in range(20):
        assert not attempts.begin(["a"])
        attempts.succeeded(["a"])


# -- dead letters


def a_letter(id: str, job: str, error: str) -> Any:
    return SimpleNamespace(id=id, job=job, error=error, key="", queue="celery", worker="w", at=ago(60))


def test_an_action_on_a_group_affects_no_other_job() -> None:
    there = [
        a_letter("1", "shop.fetch", "E: order 1"),
        a_letter("2", "shop.fetch", "E: order 2"),
        a_letter("3", "shop.fetch", ""),
        a_letter("4", "shop.fetch_all", "E: order 3"),  # its name begins like the other's
        a_letter("5", "shop.fetch", 'E: order "4" [5]'),
    ]

    def some(_: None, count: int, skip: int) -> list[Any]:
        return there[skip : skip + count]

    client: Any = SimpleNamespace(dead_letters=some, status=lambda depths: SimpleNamespace(at=NOW))
    groups = dead_letters.grouped(there)
    for group in groups:
        found = dead_letters.chosen(client, {"job": group.job, **({"shape": group.shape} if group.shape else {})})
        assert len(found) == group.count
        assert {(one.job, dead_letters.shape(one.error)) for one in found} == {(group.job, group.shape)}
    assert sum(group.count for group in groups) == len(there)
    with pytest.raises(BadCall):
        dead_letters.chosen(client, {"until": "yesterday"})


# -- causes


def required(model: type[BaseModel]) -> dict[str, Any]:
    return dict.fromkeys(name for name, field in model.model_fields.items() if field.is_required())


def a_job(name: str, **values: Any) -> JobStatus:
    fields = required(JobStatus)
    fields |= {"name": name, "state": "idle", "running": 0, "keyed": False, "waiting": 0, "later": 0, "failures": 0}
    fields |= {"dead_letters": 0, "dropped_copies": 0, "overdue": False, "would_have_waited": {}, "last_end": ago(60)}
    return JobStatus.model_validate({**fields, **values})


def a_status(*jobs: JobStatus, **values: Any) -> Status:
    fields: dict[str, Any] = {"namespace": "shop", "at": NOW, "paused": False, "running": 0, "max_running": None}
    fields |= {"waiting": sum(one.waiting for one in jobs), "later": 0, "dead_letters": 0, "jobs": list(jobs)}
    fields |= {name: [] for name in ("runs", "waits", "workers", "died", "queues", "problems")}
    return Status.model_validate({**fields, **values})


def a_graph(*pairs: tuple[str, str]) -> DependencyGraph:
    """Pairs of a job and the job that it needs."""
    needs = [Needs(job=one, needs=other, on="success") for one, other in pairs]
    return DependencyGraph(namespace="shop", at=NOW, jobs=[], dependencies=needs, conflicts=[], groups=[], cycles=[])


OFF = Disabled(by="failures", why="5 failures in a row", at=ago(90), failures=None)
CHAIN = a_graph(("process", "fetch"), ("report", "process"), ("index", "process"))


def test_a_disabled_job_is_the_cause_of_all_that_waits_for_it_once() -> None:
    fetch = a_job("fetch", disabled=OFF, failures=5, last_error="ConnectionError: refused", waiting=1)
    status = a_status(fetch, *(a_job(one, waiting=n) for one, n in (("process", 20), ("report", 10), ("index", 10))))
    found = find_root_causes(status, CHAIN)
    (cause,) = found.findings
    assert (cause.kind, cause.job, cause.wrong) == ("disabled", "fetch", True)
    assert cause.text == "is disabled after 5 failures"
    assert cause.detail == "ConnectionError: refused"
    assert (set(cause.jobs), cause.runs) == ({"process", "report", "index"}, 41)
    assert found.chains["report"] == ("report", "process", "fetch")


def test_a_job_that_failed_is_a_cause_only_where_something_waits_for_it() -> None:
    failed = a_job("fetch", failures=1, last_outcome="failed", last_error="boom")
    (cause,) = find_root_causes(a_status(failed, a_job("process", waiting=2)), CHAIN).findings
    assert (cause.kind, cause.wrong, cause.runs) == ("failing", True, 2)
    (note,) = find_root_causes(a_status(failed, a_job("process")), CHAIN).findings
    assert not note.wrong


def test_a_job_that_fails_because_of_another_is_not_a_cause() -> None:
    fetch = a_job("fetch", disabled=OFF, failures=5)
    status = a_status(fetch, a_job("process", waiting=1, failures=1, last_outcome="failed"), a_job("report", waiting=1))
    assert [one.job for one in find_root_causes(status, CHAIN).findings] == ["fetch"]


def test_overdue_jobs_whose_cause_is_named_are_not_named_again() -> None:
    fetch = a_job("fetch", disabled=OFF)
    status = a_status(fetch, a_job("process", waiting=1, overdue=True), a_job("other", overdue=True))
    assert [(one.kind, one.job) for one in find_root_causes(status, CHAIN).wrong] == [
        ("disabled", "fetch"),
        ("overdue", "other"),
    ]


def test_a_pause_comes_first_and_holds_everything() -> None:
    status = a_status(
        a_job("fetch", disabled=OFF), a_job("process", waiting=3), paused=True, problems=["everything is paused"]
    )
    first, *_ = find_root_causes(status, CHAIN).findings
    assert (first.kind, first.runs) == ("paused", 3)
    assert len([one for one in find_root_causes(status, CHAIN).findings if "paused" in one.text]) == 1


def test_causes_are_found_in_cycles_and_in_chains_of_a_thousand_jobs() -> None:
    ring = a_graph(("a", "b"), ("b", "a"))
    assert (
        find_root_causes(a_status(a_job("a", disabled=OFF, waiting=1), a_job("b", waiting=1)), ring).findings[0].runs
        == 2
    )
    row = a_graph(*((f"j{n + 1}", f"j{n}") for n in range(1000)))
    jobs = [a_job("j0", disabled=OFF), *(a_job(f"j{n}", waiting=1) for n in range(1, 1001))]
    found = find_root_causes(a_status(*jobs), row)
    assert found.findings[0].runs == 1000
    assert len(found.chains["j1000"]) == 1001


# -- words


def test_names_are_shortened_by_their_common_beginning_only() -> None:
    assert formatting.common_prefix(["shop.tasks.a", "shop.tasks.b", "shop.tools.c"]) == "shop."
    assert formatting.common_prefix(["shop.a"]) == ""
    long = "shop." + "x" * 80 + ".the_end_of_it"
    assert len(formatting.short(long)) == formatting.NAME
    assert formatting.short(long).endswith("the_end_of_it")
    assert formatting.brief("shop.b waits for shop.a: eshop.a", "shop.") == "b waits for a: eshop.a"


# -- drawings


def is_sound(text: str) -> ElementTree.Element:
    assert "style=" not in text
    return ElementTree.fromstring(text)


@pytest.mark.parametrize("name", [text for text in TEXTS.values() if "\x00" not in text])
def test_names_in_drawings_stay_text(name: str) -> None:
    nodes = {name: graph.Node(name, "idle", 0, 0), "b": graph.Node("b", "disabled", 1, 2)}
    root = is_sound(graph.graph(a_graph((name, "b")), nodes, ""))
    assert not root.findall(".//script")
    window = Window(ago(100), NOW)
    span = Span("running", ago(50), NOW, name, f"run{formatting.query(id=name)}")
    is_sound(drawn.lane([span], [], [], window, NOW, name))


def an_end(at: float, seconds: float = 2, **values: Any) -> Ended:
    fields = required(Ended)
    fields |= {"id": f"r{at}", "job": "fetch", "outcome": "succeeded", "retries": 0, "key": "", "recoveries": 0}
    fields |= {"arrived": ago(at + seconds + 1), "started": ago(at + seconds), "ended": ago(at), "seconds": seconds}
    return Ended.model_validate({**fields, "waited_seconds": 1, "fires": 1, "made_run": True, **values})


def test_runs_that_are_too_close_are_drawn_as_one_and_counted() -> None:
    window = Window(ago(3600), NOW)
    spans = [Span("succeeded", ago(at + 0.5), ago(at), "x", "run") for at in range(3600)]
    found = drawn.merged(spans, window, "runs")
    assert len(found) <= drawn.MOST
    assert sum(one.count for one in found) == 3600


def test_a_lane_never_has_more_shapes_than_can_be_seen() -> None:
    window = Window(ago(86400), NOW)
    spans = [Span("failed", ago(at * 80 + 1), ago(at * 80), "x", "run") for at in range(1000)]
    assert len(drawn.merged(spans, window, "runs")) <= drawn.MOST


def test_runs_become_bars_and_waits_strips_by_their_cause() -> None:
    crashed = an_end(50, outcome="crashed", recoveries=1)
    waited = an_end(10, waited_for="fetch", waited_rule="depends")
    skipped = an_end(30, outcome="skipped", made_run=False, error="the run before it has not ended", fires=3)
    bars, strips, points = timeline.of_ended([waited, skipped, crashed], ago(1000))
    assert [one.kind for one in bars] == ["succeeded", "failed recovered"]
    assert [one.kind for one in strips] == ["wait dependency"]
    assert [(one.kind, one.count) for one in points] == [("skipped", 3)]


def test_the_axis_has_round_times() -> None:
    for seconds in (60, 3600, 86400, 7 * 86400):
        step, times = drawn.ticks(Window(ago(seconds), NOW))
        assert 2 <= len(times) <= 8
        assert all(at.timestamp() % step == 0 for at in times)


def test_layers_follow_the_dependencies_and_circles_end() -> None:
    needs = {"process": ["fetch"], "report": ["process", "fetch"]}
    assert graph.layers(["fetch", "process", "report"], needs) == {"fetch": 0, "process": 1, "report": 2}
    assert set(graph.layers(["a", "b"], {"a": ["b"], "b": ["a"]}).values()) == {0, 1}
    row = {f"j{n + 1}": [f"j{n}"] for n in range(5000)}
    assert max(graph.layers([f"j{n}" for n in range(5001)], row).values()) == 5000


def test_boxes_of_the_graph_do_not_overlap() -> None:
    names = [f"j{n}" for n in range(60)]
    needs = {f"j{n}": [f"j{n % 7}"] for n in range(7, 60)}
    pairs = [(need, name) for name, some in needs.items() for need in some]
    places = graph.placed(graph.ordered(graph.layers(names, needs), pairs))
    assert len({(one.x, one.y) for one in places.values()}) == 60


def test_bands_have_round_axes_with_units() -> None:
    text = bands.bands([(ago(n), 1.7) for n in range(20)], "took")
    is_sound(text)
    assert re.findall(r">(0|1 s|2 s)<", text) == ["0", "1 s", "2 s"]
    assert bands.bands([(NOW, 1.0)], "took") == ""
    assert bands.nice(0.03) == pytest.approx(0.05)
    assert bands.nice(70) == 120


def test_small_drawings_are_valid_and_empty_ones_draw_nothing() -> None:
    is_sound(spark.line([1, 5, 3], "depth"))
    is_sound(spark.ticks([an_end(at) for at in range(30)]))
    assert spark.line([1], "x") == ""
    assert spark.ticks([]) == ""


# -- pages


def test_figures_count_all_runs() -> None:
    found = job.figures([float(n) for n in range(1, 101)])
    assert found is not None
    assert (found.p50, found.p95, found.longest, found.count) == (50, 95, 100, 100)
    assert job.figures([3.0]) == job.Figures(1, 3.0, 3.0, 3.0)
    assert job.figures([]) is None


def test_errors_that_differ_by_numbers_are_one_group() -> None:
    assert dead_letters.shape("order 12: 0x7f declined") == dead_letters.shape("order 345: 0x8a declined")
    assert dead_letters.shape("timeout") != dead_letters.shape("refused")


def a_run(**values: Any) -> RunStatus:
    fields = required(RunStatus)
    fields |= {
        "id": "r",
        "job": "fetch",
        "state": "waiting",
        "key": "",
        "priority": "normal",
        "retries": 0,
        "seconds": 9,
    }
    fields |= {"queue": "celery", "recoveries": 0, "arrived": ago(10), "since": ago(9)}
    return RunStatus.model_validate({**fields, **values})


def test_a_list_of_runs_is_cut() -> None:
    many = [a_run(id=f"r{number}") for number in range(runs.MOST + 50)]
    look = SimpleNamespace(status=a_status(runs=many), now=NOW)
    found = runs.view(look, {})  # type: ignore[arg-type]
    assert (len(found["run_rows"]), found["more"]) == (runs.MOST, True)
    look = SimpleNamespace(status=a_status(runs=many[: runs.MOST]), now=NOW)
    found = runs.view(look, {})  # type: ignore[arg-type]
    assert (len(found["run_rows"]), found["more"]) == (runs.MOST, False)


def test_a_long_run_that_others_wait_for_is_a_note() -> None:
    run = a_run(state="running", seconds=600, worker="w1", job="cleanup", id="c1")
    wait = a_run(job="process", rule="blocked", waits_for="cleanup")
    status = a_status(a_job("cleanup", running=1), a_job("process", waiting=4), runs=[run], waits=[wait])
    (note,) = find_root_causes(status, None).findings
    assert (note.kind, note.wrong, note.target, note.runs) == ("busy", False, "c1", 4)


@pytest.mark.parametrize("state", get_args(RunState))
def test_every_state_of_a_run_has_a_mark(state: str) -> None:
    style = (Path(web.__file__).parent / "static" / "style.css").read_text()
    assert f".state-{state}::before" in style or f".state-{state}," in style
