"""The list of deliberate mistakes (``make mutants``) fits the code as it is."""

from pathlib import Path

import pytest

from mutants import Mutant, ledger, others, worker

ROOT = Path(__file__).parents[2]
MUTANTS = [*ledger.MUTANTS, *worker.MUTANTS, *others.MUTANTS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_changes_one_place_and_names_tests_that_exist(mutant: Mutant) -> None:
    assert (ROOT / "celery_orchestration" / mutant.file).read_text().count(mutant.old) == 1
    for test in mutant.tests:
        assert (ROOT / "tests" / test.partition("::")[0]).is_file()
