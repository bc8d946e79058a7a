"""Rules for the tests themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
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
    """What two of them need is in ``support``; fixtures are in ``conftest.py``."""
    found = {str(path.relative_to(TESTS)): imported_tests(path.read_text()) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    ["from integration.test_ledger import PREFIX", "from tests.unit import test_task", "import conftest"],
)
def test_an_import_of_a_test_module_is_noticed(text: str):
    assert imported_tests(text)
