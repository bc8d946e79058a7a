"""docs/promises.md: every test that it names exists, and every promise that the README prints in bold is on it."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "promises.md").read_text()
README = (PROJECT / "README.md").read_text()


def modules_named(name: str) -> str:
    """What is in the test modules of that name."""
    return "\n".join(path.read_text() for path in (PROJECT / "tests").rglob(name))


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", PAGE)
    assert len(named) > 40
    missing = [
        f"{module}::{test}"
        for module, test in named
        if not (text := modules_named(module)) or (test and f"def {test}(" not in text)
    ]
    assert missing == []


def test_every_row_of_the_page_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("|---", "| promise"))]
    assert [row for row in rows if "`test_" not in row] == []


def test_every_promise_of_the_readme_is_on_the_page():
    def words(text: str) -> str:
        return re.sub(r"\s+", " ", text)

    promises = [words(one) for one in re.findall(r"\*\*(.+?)\*\*", README, re.DOTALL)]
    assert len(promises) > 10
    assert [promise for promise in promises if promise not in words(PAGE)] == []
