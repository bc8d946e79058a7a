"""docs/design.md: every file and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "celery_orchestration"
PAGE = (PROJECT / "docs" / "design.md").read_text()

TESTS = sorted(set(re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", PAGE)))
#: `ledger/lua/rules.lua`, `worker/fetch/`, `tests/unit/test_design.py`: in the repository, or in the package.
FILES = sorted(name for name in set(re.findall(r"`([\w./]+(?:\.py|\.lua|/))`", PAGE)) if not name.startswith("test_"))


def test_the_page_names_files_and_tests():
    assert len(FILES) > 30
    assert len(TESTS) > 50


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_the_page_names_exists(name: str):
    # "times.py" alone is short for a file that the same row names in full.
    assert (PROJECT / name).exists() or (PACKAGE / name).exists() or ("/" not in name and list(PACKAGE.rglob(name)))


@pytest.mark.parametrize(("module", "test"), TESTS)
def test_a_test_that_the_page_names_exists(module: str, test: str):
    found = [path.read_text() for path in (PROJECT / "tests").rglob(module)]
    assert found, f"no test module {module}"
    assert not test or any(f"def {test}(" in text for text in found), f"no test {test} in {module}"


def test_every_fault_names_a_test():
    faults = PAGE[PAGE.index("## Faults") : PAGE.index("## Map of the code")]
    rows = [line for line in faults.splitlines() if line.startswith("|") and not line.startswith(("|---", "| fault"))]
    assert len(rows) > 40
    assert [row for row in rows if "`test_" not in row] == []
