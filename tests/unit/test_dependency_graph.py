"""The graph of jobs: every job and every relation is in it once, whatever the names are and whatever the relations."""

from __future__ import annotations

import re
import time
from collections import Counter
from datetime import datetime, timezone
from html import unescape
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from celery_orchestration.cli.show.graph import graph_lines, print_graph
from celery_orchestration.job.options import Dependency, JobOptions, read_options
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.text import printable
from celery_orchestration.ledger.keys import encode_job
from celery_orchestration.operate.graph.dependency_graph import (
    Conflict,
    DependencyGraph,
    Drawn,
    Exclusive,
    Needs,
    about,
    build_graph,
)
from celery_orchestration.operate.graph.formats import COLOURS, dot, mermaid
from celery_orchestration.operate.graph.tree import DEEPEST, tree
from support.hostile import TEXTS

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
NOW_MS = round(NOW.timestamp() * 1000)


def told(name: str, deps: Any = (), conf: Any = (), **more: Any) -> dict[str, Any]:
    """A job as the ledger returns it. Lua's empty tables come as {}."""
    dependencies = [{"job": encode_job(dep), "on": "success", "fresh": False} for dep in deps]
    conflicts = [encode_job(one) for one in conf]
    common = {"disabled": False, "running": 0, "waiting": 0, "failed": False}
    return {"name": encode_job(name), "depends_on": dependencies or {}, "conflicts": conflicts or {}, **common, **more}


def drawn_from(*jobs: dict[str, Any], policies: dict[str, Policy] | None = None) -> DependencyGraph:
    return build_graph("shop", {"now": NOW_MS, "jobs": list(jobs) or {}}, policies or {})


def of(edges: dict[str, list[str]], blocks: Any = (), **states: Any) -> DependencyGraph:
    """Jobs, each with its dependencies."""
    names = sorted({*edges, *(name for deps in edges.values() for name in deps), *(n for pair in blocks for n in pair)})
    conf = {name: [b for a, b in map(sorted, blocks) if a == name] for name in names}
    return drawn_from(*(told(n, edges.get(n, ()), conf[n], **states.get(n, {})) for n in names))


NAMES = st.one_of(st.sampled_from([*TEXTS.values(), "a", "b", "c", "shop.fetch_data"]), st.text(min_size=1, max_size=8))
NAMES = NAMES.filter(lambda name: not any("\ud800" <= char <= "\udfff" for char in name))


@st.composite
def dependency_graph(draw: Any) -> DependencyGraph:
    """Any graph: cycles, jobs that depend on themselves, several conditions of one pair."""
    names = draw(st.lists(NAMES, min_size=1, max_size=10, unique=True))
    name = st.sampled_from(names)
    states = st.sampled_from(["idle", "running", "waiting", "disabled", "unknown"])
    needs = st.builds(
        Needs,
        job=name,
        needs=name,
        on=st.sampled_from(["success", "finish", "idle"]),
        max_age_seconds=st.none() | st.floats(0.001, 1e9),
        fresh=st.booleans(),
    )
    pairs = draw(st.sets(st.tuples(name, name).filter(lambda pair: pair[0] < pair[1]), max_size=10))
    dependencies = draw(st.lists(needs, max_size=20))
    members = st.sets(name, min_size=2) if len(names) > 1 else st.nothing()
    groups = draw(st.lists(st.builds(Exclusive, name=st.none() | NAMES, jobs=members.map(sorted)), max_size=2))
    jobs = sorted(names)
    # Built with build_graph, so that order and cycles are those of a real graph.
    whole = drawn_from(*(told(n, [d.needs for d in dependencies if d.job == n]) for n in jobs))
    return whole.model_copy(
        update={
            "jobs": [Drawn(name=n, state=draw(states), failed=draw(st.booleans())) for n in jobs],
            "dependencies": dependencies,
            "conflicts": [Conflict(one=a, other=b) for a, b in sorted(pairs)],
            "groups": groups,
        }
    )


def pairs_of(whole: DependencyGraph) -> set[tuple[str, str]]:
    return {(one.needs, one.job) for one in whole.dependencies}


# -- what the ledger and the code say


def test_jobs_have_the_state_that_follows_from_what_they_do():
    found = drawn_from(
        told("disabled", disabled=True, running=1),
        told("failed", failed=True),
        told("idle"),
        told("running", running=2, waiting=1),
        told("waiting", waiting=3),
    )
    assert {one.name: one.state for one in found.jobs} == {
        "disabled": "disabled", "failed": "idle", "idle": "idle", "running": "running", "waiting": "waiting"
    }  # fmt: skip
    assert {one.name: (one.running, one.waiting, one.failed) for one in found.jobs}["running"] == (2, 1, False)


def test_unusual_conditions_are_shown():
    dep = {"job": "a", "on": "finish", "max_age_seconds": 90, "fresh": True}
    found = drawn_from(told("a"), {**told("b"), "depends_on": [dep, {"job": "a", "on": "success", "fresh": False}]})
    assert found.conditions() == {("a", "b"): "finish, at most 90 s old, fresh"}
    assert [(one.on, one.max_age_seconds, one.fresh) for one in found.dependencies] == [
        ("finish", 90, True),
        ("success", None, False),
    ]


def test_jobs_of_the_code_that_no_worker_has_registered_are_marked():
    new = Policy.resolve(
        "new", JobOptions(max_running=1, depends_on=[Dependency("old", on="idle"), "elsewhere"], blocks=["old"])
    )
    changed = Policy.resolve("old", JobOptions(max_running=1, depends_on=["not.in.force.yet"]))
    found = drawn_from(told("old"), policies={"new": new, "old": changed})
    assert {one.name: one.state for one in found.jobs} == {"elsewhere": "unknown", "new": "unknown", "old": "idle"}
    assert found.conditions() == {("elsewhere", "new"): "", ("old", "new"): "idle"}
    assert found.conflicts == [Conflict(one="new", other="old")]


def test_names_are_shown_as_they_were_written():
    found = of({"a:b": ["c%d"]}, blocks=[("a:b", "x y")])
    assert [one.name for one in found.jobs] == ["a:b", "c%d", "x y"]
    assert pairs_of(found) == {("c%d", "a:b")}
    assert [(one.one, one.other) for one in found.conflicts] == [("a:b", "x y")]


def test_the_graph_of_one_job_keeps_only_related_jobs():
    whole = of({"b": ["a"], "c": ["b"], "d": ["c"], "side": ["a"], "far": ["other"]}, blocks=[("c", "x"), ("x", "y")])
    found = about(whole, "c")
    assert [one.name for one in found.jobs] == ["a", "b", "c", "d", "x"]
    assert pairs_of(found) == {("a", "b"), ("b", "c"), ("c", "d")}
    assert [(one.one, one.other) for one in found.conflicts] == [("c", "x")]
    assert about(whole, "y").jobs == [one for one in whole.jobs if one.name in "xy"]


# -- as a tree


@given(dependency_graph(), st.integers(1, DEEPEST))
def test_every_dependency_and_every_head_is_one_line_and_every_job_is_drawn_once(whole, deepest):
    lines = tree(whole, deepest)
    assert Counter((line.under, line.job) for line in lines if line.under is not None) == Counter(pairs_of(whole))
    heads = Counter(line.job for line in lines if line.under is None)
    assert set(heads.values()) <= {1}
    assert Counter(line.job for line in lines if line.drawn == "here") == Counter(one.name for one in whole.jobs)
    assert all(len(line.lasts) <= deepest for line in lines)
    # What is said to be above or below is.
    place = {line.job: at for at, line in enumerate(lines) if line.drawn == "here"}
    assert all(place[line.job] < at for at, line in enumerate(lines) if line.drawn == "above")
    assert all(place[line.job] > at for at, line in enumerate(lines) if line.drawn == "below")


@given(dependency_graph(), st.integers(1, DEEPEST))
def test_a_line_is_below_the_job_that_it_hangs_on(whole, deepest):
    path: list[str] = []
    for line in tree(whole, deepest):
        del path[len(line.lasts) :]
        assert (path[-1] if path else None) == line.under
        path.append(line.job)


def test_jobs_without_dependencies_come_first_and_their_dependents_below():
    whole = of({"process": ["fetch"], "report": ["process", "fetch"], "alone": []})
    assert [("  " * len(line.lasts) + line.job, line.drawn) for line in tree(whole)] == [
        ("alone", "here"),
        ("fetch", "here"),
        ("  process", "here"),
        ("    report", "here"),
        ("  report", "above"),
    ]


def test_a_circle_is_drawn_and_marked():
    whole = of({"a": ["c"], "b": ["a"], "c": ["b"], "end": ["c"]})
    assert whole.cycles == [["a", "c", "b", "a"]]
    assert [("  " * len(line.lasts) + line.job, line.drawn) for line in tree(whole)] == [
        ("a", "here"), ("  b", "here"), ("    c", "here"), ("      a", "above"), ("      end", "here"),
    ]  # fmt: skip
    text = shown(whole)
    assert text.count("↻") == 4
    assert "! these wait for each other: a → c → b → a" in text


@pytest.mark.parametrize(
    "edges",
    [
        {f"j{n:05}": [f"j{n - 1:05}"] for n in range(1, 10_000)},
        {f"j{n:05}": [f"j{(n - 1) % 10_000:05}"] for n in range(10_000)},
        {f"j{n:05}": ["j00000"] for n in range(1, 10_000)},
        {"z": [f"j{n:05}" for n in range(9_999)]},
        {f"j{n:05}": [f"j{n // 2:05}", f"j{n // 3:05}"] for n in range(2, 10_000)},
    ],
    ids=["in a row", "in a circle", "on one", "one on all", "as a net"],
)
def test_ten_thousand_jobs_are_drawn_in_bounded_time(edges):
    began = time.process_time()
    whole = of(edges)
    lines = graph_lines(whole, 80)
    assert len(mermaid(whole).splitlines()) > len(whole.jobs) < len(dot(whole).splitlines())
    assert time.process_time() - began < 20
    assert max(len(line.plain) for line in lines[:-1]) < 200


# -- in a terminal


def shown(whole: DependencyGraph, columns: int = 80) -> str:
    file = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        print_graph(whole, file)
    return file.getvalue()


def test_the_drawing_shows_states_conditions_and_conflicts():
    dep = {"job": "shop.fetch", "on": "finish", "fresh": True}
    whole = drawn_from(
        told("shop.cleanup", conf=["shop.process"]),
        told("shop.fetch", failed=True, disabled=True),
        {**told("shop.process", running=1), "depends_on": [dep]},
    )
    assert shown(whole) == (
        "shop: 3 jobs; below each job those that wait for it; ✕ never at the same time\n"
        "shop.cleanup  ✕ shop.process\n"
        "shop.fetch  disabled  last run failed\n"
        "└─ shop.process (finish, fresh)  running  ✕ shop.cleanup\n"
    )


def test_only_the_first_of_many_conflicts_are_named():
    whole = of({}, blocks=[("a", f"b{n}") for n in range(1000)])
    assert "a  ✕ b0, b1, b10 and 997 more" in shown(whole)


def test_a_group_is_shown_by_its_name_and_its_jobs():
    whole = drawn_from(*(told(name, groups=["=reports"]) for name in "abcde"))
    assert [(one.name, one.jobs) for one in whole.groups] == [("reports", ["a", "b", "c", "d", "e"])]
    assert "a  ✕ b, c, d and 1 more" in shown(whole)
    assert whole == about(whole, "a")
    assert about(of({"x": []}), "x").groups == []


def test_a_job_that_the_ledger_does_not_know_yet_is_in_its_group():
    new = Policy.resolve("new", read_options("new", {"exclusive": "reports"}))
    whole = drawn_from(told("old", groups=["=reports"]), policies={"new": new})
    assert [(one.name, one.jobs) for one in whole.groups] == [("reports", ["new", "old"])]


def test_a_graph_without_jobs_says_so():
    assert shown(drawn_from()) == "there are no jobs\n"


@given(dependency_graph(), st.integers(20, 200))
def test_the_drawing_is_harmless_and_fits_the_window(whole, columns):
    text = shown(whole, columns)
    assert all(char.isprintable() or char == "\n" for char in text), text
    assert [line for line in text.splitlines() if cell_len(line) > columns] == []


# -- for other programs: read back


@given(dependency_graph())
def test_mermaid_has_every_job_and_every_relation_once(whole):
    head, *lines = mermaid(whole).splitlines()
    assert head == "flowchart TD"
    labels: dict[str, str] = {}
    found: list[Any] = []
    for line in lines:
        if node := re.fullmatch(r'    (n\d+)\["([\w .#;]*)"\]:::(\w+)', line):
            assert node[1] not in labels
            labels[node[1]] = decoded(node[2])
            found.append((decoded(node[2]), node[3]))
        elif edge := re.fullmatch(r'    (n\d+) -->(?:\|"([\w .#;]+)"\|)? (n\d+)', line):
            found.append((labels[edge[1]], labels[edge[3]], decoded(edge[2] or "")))
        elif pair := re.fullmatch(r"    (n\d+) -\.- (n\d+)", line):
            found.append(("never", *sorted((labels[pair[1]], labels[pair[2]]))))
        elif group := re.fullmatch(r'    (g\d+)\(\["([\w .#;]*)"\]\)', line):
            labels[group[1]] = decoded(group[2])
        elif member := re.fullmatch(r"    (g\d+) -\.- (n\d+)", line):
            found.append((labels[member[1]], labels[member[2]]))
        else:
            assert re.fullmatch(r"    classDef \w+ fill:#\w+,stroke:#\w+,color:#\w+(,stroke-dasharray:4)?", line), line
    assert sorted(map(repr, found)) == sorted(map(repr, expected(whole)))


def decoded(label: str) -> str:
    return re.sub(r"#(\d+);", lambda number: chr(int(number[1])), label)


@given(dependency_graph())
def test_dot_has_every_job_and_every_relation_once(whole):
    head, *lines, end = dot(whole).splitlines()
    assert (head, end) == ('digraph "shop" {', "}")
    text = r'"((?:[^"\\]|\\["\\])*)"'
    labels: dict[str, str] = {}
    found: list[Any] = []
    for line in lines:
        if node := re.fullmatch(rf'    (n\d+) \[label={text}, class="(\w+)", [\w#",= ]+\];', line):
            assert node[1] not in labels
            labels[node[1]] = unquoted(node[2])
            found.append((unquoted(node[2]), node[3]))
        elif edge := re.fullmatch(rf"    (n\d+) -> (n\d+)(?: \[label={text}\])?;", line):
            found.append((labels[edge[1]], labels[edge[2]], unquoted(edge[3] or "")))
        elif pair := re.fullmatch(r"    (n\d+) -> (n\d+) \[dir=none, style=dashed, constraint=false\];", line):
            found.append(("never", *sorted((labels[pair[1]], labels[pair[2]]))))
        elif group := re.fullmatch(r'    (g\d+) \[label="(.*)", shape=ellipse, style=dashed\];', line):
            labels[group[1]] = unquoted(group[2])
        elif member := re.fullmatch(r"    (g\d+) -> (n\d+) \[dir=none, style=dashed, constraint=false\];", line):
            found.append((labels[member[1]], labels[member[2]]))
        else:
            assert re.fullmatch(r'    (node|edge) \[[\w="\-, ]+\];', line), line
    assert sorted(map(repr, found)) == sorted(map(repr, expected(whole)))


def unquoted(text: str) -> str:
    assert "&" not in text.replace("&amp;", "")
    return unescape(re.sub(r"\\(.)", r"\1", text))


def expected(whole: DependencyGraph) -> list[Any]:
    return [
        *((printable(one.name), one.state) for one in whole.jobs),
        *((printable(needs), printable(job), said) for (needs, job), said in whole.conditions().items()),
        *(("never", *sorted((printable(one.one), printable(one.other)))) for one in whole.conflicts),
        *((label(one), printable(job)) for one in whole.groups for job in one.jobs),
    ]


def label(group: Exclusive) -> str:
    return printable(f"one at a time: {group.name}" if group.name else "one at a time")


def test_ordinary_names_stay_legible():
    text = mermaid(of({"shop.process_data": ["shop.fetch_data"]}))
    assert 'n0["shop.fetch_data"]:::idle' in text
    assert "n0 --> n1" in text
    assert set(COLOURS) == set(re.findall(r"classDef (\w+)", text))
