"""The gate's rules over plain values: one test per rule that ``testing.decide`` cannot reach."""

from __future__ import annotations

import re

from celery_orchestration.job import rules
from celery_orchestration.job.rules import Dependency, Job, Last, Run, Situation, behind, reason_to_wait
from celery_orchestration.ledger.scripts import library_text

NORMAL = 1


def test_nothing_starts_while_the_ledger_may_have_lost_data():
    gate = Situation({"a": Job()}, in_new_epoch=True, paused=True)
    assert reason_to_wait(gate, Run("a", NORMAL)) == ["epoch"]


def test_a_forced_run_starts_while_everything_is_paused():
    gate = Situation({"a": Job()}, paused=True)
    assert reason_to_wait(gate, Run("a", NORMAL)) == ["paused"]
    assert reason_to_wait(gate, Run("a", NORMAL, forced=True)) is None


def test_dependencies_are_not_checked_again_for_a_retry():
    gate = Situation({"a": Job(dependencies=[Dependency("d")]), "d": Job()}, ended={"d": Last(False, 0)})
    assert reason_to_wait(gate, Run("a", NORMAL)) == ["depends", "d", "failed"]
    assert reason_to_wait(gate, Run("a", NORMAL, dependencies_checked=True)) is None


def test_a_dependent_may_pass_the_next_run_of_a_job_that_has_just_ended():
    gate = Situation({"a": Job(never_beside=["d"]), "d": Job(never_beside=["a"])})
    gate.wait(Run("d", NORMAL, arrival=1))
    run = Run("a", NORMAL, arrival=2)
    assert behind(gate, run) == ["behind", "d"]
    assert behind(gate, run, ignoring="d") is None


def test_runs_of_different_keys_do_not_wait_for_each_other_unless_the_job_has_no_key():
    first, second = Run("a", NORMAL, "eu", arrival=1), Run("a", NORMAL, "us", arrival=2)
    for keyed, expected in ((True, None), (False, ["behind", "a"])):
        gate = Situation({"a": Job(keyed=keyed)})
        gate.wait(first)
        assert reason_to_wait(gate, second) == expected


def test_a_job_of_another_service_has_no_rules_here():
    assert reason_to_wait(Situation({}), Run("elsewhere", NORMAL)) is None


#: The name of a rule in Lua, and its kind.
LUA_RULES = re.findall(r"\{ RULE\.(\w+), '(\w+)' \}", library_text("rules"))


def test_the_ledger_tries_the_same_rules_in_the_same_order():
    tried = [re.sub("_(own|others)$", "", name) for name, _ in LUA_RULES]
    assert list(dict.fromkeys(tried)) == [rule.__name__.removesuffix("_room") for rule in rules.RULES]


def test_the_same_rules_do_not_bar_others_in_the_ledger():
    assert {name for name, kind in LUA_RULES if kind == "its_job"} == {rule.__name__ for rule in rules.NOT_BARRING}
