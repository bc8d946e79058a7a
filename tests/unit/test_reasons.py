"""The table of reasons: every reason of the gate can be told in every place that shows it."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import get_args

import pytest

from celery_orchestration.job import reasons
from celery_orchestration.job.reasons import CONDITIONS, KINDS, REASONS, RootCause
from celery_orchestration.job.rules import RULES, Rule
from celery_orchestration.operate.explain.chain import Step
from celery_orchestration.operate.explain.root_cause import RootCauseFinder

LEDGER = files("celery_orchestration.ledger")
#: As a Lua file builds a reason: { 'room', j.name, r.key }.
WRITTEN = re.compile(r"return \{ '(\w+)'")


def texts(folder):
    for one in folder.iterdir():
        if one.is_dir():
            yield from texts(one)
        elif one.name.endswith(".lua"):
            yield one.read_text()


def test_every_rule_of_the_gate_has_an_entry():
    gate = next(text for text in texts(LEDGER) if "{ 'behind'" in text)
    found = set(WRITTEN.findall(gate))
    assert {"paused", "disabled", "room", "depends", "behind"} <= found
    assert found <= REASONS.keys()


def test_waits_for_every_rule_are_counted():
    rules = next(text for text in texts(LEDGER) if "STATS.REASONS = {" in text)
    (listed,) = re.findall(r"STATS\.REASONS = \{(.*?)\}", rules, re.DOTALL)
    counted = re.findall(r"'(\w+)'", listed)
    assert set(WRITTEN.findall(rules)) <= set(counted) <= REASONS.keys()
    assert len(counted) == len(set(counted))


def test_every_rule_in_python_has_an_entry_in_the_same_order():
    names = [rule.__name__.removesuffix("_room") for rule in RULES]
    assert names == list(REASONS)[: len(RULES)]
    assert {*get_args(Rule)} == {*names} - {"epoch"}


@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
class TestReason:
    def test_has_a_sentence_for_the_present_and_one_for_the_past(self, reason):
        words = [reason.word, "shop.fetch", *(["failed"] if reason.word == "depends" else [])]
        assert reasons.sentence(words, lambda job: f"{job} is running")
        assert "{" not in reasons.past(words)
        assert reasons.past([reason.word]) != "" or reason.names_job

    def test_has_a_root_cause_and_a_kind(self, reason):
        assert reason.root_cause in get_args(RootCause)
        assert reasons.kind_of(reason.word) in KINDS

    def test_names_a_job_or_none(self, reason):
        assert reasons.job_of([reason.word, "shop.fetch"]) == ("shop.fetch" if reason.names_job else None)
        assert reasons.job_of([reason.word]) is None


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_every_missing_condition_of_a_dependency_has_words(condition):
    told = reasons.sentence(["depends", "shop.fetch", condition.word], lambda _: "running")
    assert told == f"waiting for shop.fetch: {condition.present or 'running'}"
    assert condition.root_cause in get_args(RootCause)


def test_a_rule_that_only_the_table_knows_is_explained_with_its_sentence_and_its_fix(monkeypatch):
    rule = reasons.Reason("rate", "at most {0} starts a minute", "its rate", "later", "room", fix=("enable", "{0}"))
    monkeypatch.setitem(REASONS, "rate", rule)
    cause = RootCauseFinder({}).root([Step("shop.fetch", None, ["rate", "5"], {})])
    assert (cause.code, cause.job, cause.text) == ("room", "shop.fetch", "at most 5 starts a minute")
    assert cause.fix.endswith("orchestration enable shop.fetch")


def test_an_unknown_reason_is_shown_by_its_words():
    assert reasons.past(["new_rule", "shop.fetch"]) == "shop.fetch"
    assert reasons.past(["new_rule"]) == "new_rule"
    assert reasons.job_of(["new_rule", "shop.fetch"]) is None
    assert reasons.kind_of("new_rule") == reasons.kind_of(None) == "slot"
