"""How the verbs of the ledger are put together: each brings only the functions that it can reach."""

from __future__ import annotations

import re

import pytest

from celery_orchestration.ledger.scripts import library, script, verbs, without_unused

LIBRARY = """\
-- first: calls second
function first(x)
  return second(x)
end

local function second(x)
  return x
end

function OF.third()
  return 3
end

function fourth()
  -- first is not called here
  return 4
end
"""


def functions(text: str) -> list[str]:
    return re.findall(r"^(?:local )?function ([\w.]+)", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("verb", "left"),
    [
        ("return first(1)", ["first", "second"]),
        ("return fourth() -- not first", ["fourth"]),
        ("return OF['third']()", ["OF.third"]),
        ("return 0", []),
    ],
    ids=["a function that another one calls", "a name in a comment", "a name in a string", "no function at all"],
)
def test_functions_that_a_verb_cannot_reach_are_left_out(verb, left):
    [text] = without_unused([LIBRARY], [verb])
    assert functions(text) == left


def test_what_is_no_function_stays_and_keeps_what_it_names():
    table, text = without_unused(["RULES = { fourth }\n", LIBRARY], [])
    assert table == "RULES = { fourth }\n"
    assert functions(text) == ["fourth"]


@pytest.mark.parametrize("verb", verbs())
def test_a_script_brings_no_more_than_its_library_of_functions(verb):
    assert set(functions(script(verb).text)) <= set(functions(library(verb).text))


def test_a_verb_that_only_reads_brings_no_function_that_hands_over():
    assert "hand_over" in functions(script("turn").text)
    assert "hand_over" not in functions(script("read_history").text)
