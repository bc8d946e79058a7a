"""Clocks of runs that cannot be interrupted, and the sentences about them."""

from __future__ import annotations

from time import monotonic

import pytest

from celery_orchestration.job.limits import Clocks, sentences, soft_sentence

RUN = ("id", "7")


def ignored(limit: float) -> None: ...


def test_the_first_of_end_and_limit_decides() -> None:
    clocks = Clocks()
    ends = clocks.start(RUN, 1, ignored)
    assert clocks.ring(ends - 0.01) == []
    assert clocks.stop(RUN) is not None
    assert clocks.ring(ends + 1) == []
    assert not clocks.is_over(RUN)

    ends = clocks.start(RUN, 1, ignored)
    [rung] = clocks.ring(ends)
    assert rung.limit == 1
    assert clocks.ring(ends + 1) == []
    assert clocks.stop(RUN) is None
    assert clocks.is_over(RUN)
    assert not clocks.is_over(("id", "8"))


def test_a_forgotten_run_leaves_no_clock_behind() -> None:
    clocks = Clocks()
    for over in (False, True):
        clocks.start(RUN, 0 if over else 60, ignored)
        clocks.ring(monotonic())
        clocks.forget(RUN)
        assert not clocks.is_over(RUN)
        assert clocks.next_end() is None
        assert clocks.stop(RUN) is None


def test_the_next_end_is_the_earliest() -> None:
    clocks = Clocks()
    late, early = clocks.start(("a", "1"), 60, ignored), clocks.start(("b", "1"), 5, ignored)
    assert clocks.next_end() == early
    clocks.stop(("b", "1"))
    assert clocks.next_end() == late


@pytest.mark.parametrize(
    ("kind", "jobs", "plain", "words"),
    [
        ("prefork", {"a": (1, 1)}, {"p": (1, 1)}, []),
        ("custom", {"a": (1, 1)}, {}, []),
        ("thread", {"a": (None, None)}, {"p": (None, None)}, []),
        ("thread", {"a": (1, None)}, {}, ["pool threads cannot interrupt a run: a soft time limit has no effect"]),
        ("thread", {}, {"p": (None, 1)}, ["pool threads ignores the time limits of tasks that are no jobs (p)"]),
        ("solo", {"b": (None, 1), "a": (2, 1)}, {"p": (1, None)}, ["(a, b)", "(p)"]),
        ("eventlet", dict.fromkeys("edcba", (1, None)), {}, ["(a, b, c and 2 more)"]),
        ("gevent", {"a": (1, 1), "b": (1, None)}, {"p": (1, 1)}, []),
    ],
)
def test_limits_that_a_pool_cannot_enforce_are_reported(kind: str, jobs: dict, plain: dict, words: list[str]) -> None:
    said = sentences(kind, jobs, plain)
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))


def test_gevent_keeps_hard_limits_and_no_soft_ones() -> None:
    limits = {"a": (1, 1), "b": (1, None)}
    assert soft_sentence("gevent", limits) == "execution pool gevent keeps hard time limits, but no soft ones (a)"
    assert soft_sentence("gevent", {"b": (1, None)}) is None
    assert soft_sentence("prefork", limits) is None
