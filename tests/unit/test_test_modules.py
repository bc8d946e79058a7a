"""Rules for the tests themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
TESTS = PROJECT / "tests"
SUPPORT = TESTS / "support"
MODULES = sorted(path for path in TESTS.rglob("*.py") if "projects" not in path.relative_to(TESTS).parts)


def imported(text: str) -> Iterator[str]:
    """The modules that a module may import, with the names that it takes from them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def imported_tests(text: str) -> list[str]:
    """Names of imports that lead to a test module or to a conftest."""
    known = {path.stem for path in MODULES if path.stem.startswith("test_") or path.stem == "conftest"}
    return [name for name in imported(text) if known.intersection(name.split("."))]


def test_no_module_imports_a_test_module():
    """Code that two of them need is in ``support``; fixtures are in ``conftest.py``."""
    found = {str(path.relative_to(TESTS)): imported_tests(path.read_text()) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    ["from integration.test_ledger import PREFIX", "from tests.unit import test_task", "import conftest"],
)
def test_an_import_of_a_test_module_is_noticed(text: str):
    assert imported_tests(text)


def test_support_code_is_short():
    """Without the sample apps and projects it has to stay under 4,000 lines, so that people can read it."""
    samples = (SUPPORT / "apps", SUPPORT / "projects")
    files = [path for path in SUPPORT.rglob("*.py") if not any(path.is_relative_to(folder) for folder in samples)]
    assert sum(len(path.read_text().splitlines()) for path in files) < 4000


def test_support_says_what_each_file_is_for():
    text = (SUPPORT / "__init__.py").read_text()
    names = {path.stem for path in SUPPORT.glob("*.py")} - {"__init__"}
    assert {name for name in names if f"``{name}``" not in text} == set()


def test_a_file_of_more_than_400_lines_says_why_at_its_top():
    folders = [PROJECT / folder for folder in ("celery_orchestration", "tests", "bench", "examples")]
    files = [path for folder in folders for suffix in ("py", "lua") for path in folder.rglob(f"*.{suffix}")]
    long = [lines for path in files if len(lines := path.read_text().splitlines()) > 400]
    assert long
    assert [lines[0] for lines in long if "This file is long because" not in "\n".join(lines[:60])] == []


def test_no_line_of_lua_is_longer_than_128_columns():
    files = list((PROJECT / "celery_orchestration").rglob("*.lua"))
    assert len(files) > 60
    assert {path.name for path in files for line in path.read_text().splitlines() if len(line) > 128} == set()
