"""docs/design.md, docstrings and comments: every file and every test that they name exists."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_orchestration.job.rules import RULES

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


def test_every_fault_names_a_test_or_says_that_it_is_not_tested():
    faults = PAGE[PAGE.index("## Faults") : PAGE.index("## Map of the code")]
    rows = [line for line in faults.splitlines() if line.startswith("|") and not line.startswith(("|---", "| fault"))]
    assert len(rows) > 40
    assert [row for row in rows if "`test_" not in row and "Not tested" not in row] == []


def test_the_page_lists_the_rules_in_the_order_in_which_they_are_tried():
    listed = re.findall(r"^\| \d+ \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert listed == [rule.__name__.removesuffix("_room") for rule in RULES]


# -- names of files in docstrings and comments


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, strings that stand alone, and comments, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(said))):
                yield from enumerate(said.splitlines(), node.lineno)


def prose_of_lua(text: str) -> Iterator[tuple[int, str]]:
    """The text after ``--`` in a line. No long comments are used, and no string has two dashes and the name of a
    file."""
    for number, line in enumerate(text.splitlines(), 1):
        yield number, line.partition("--")[2]


PROSE = {".py": prose_of_python, ".lua": prose_of_lua}
SOURCES = sorted(path for path in PACKAGE.rglob("*") if path.suffix in PROSE)
#: ``rules.lua``, ``lua/lib/entries.lua``; not ``<verb>.lua``, which stands for many.
FILE = re.compile(r"(?<![\w./>-])\w[\w./-]*\.(?:lua|py)\b(?![/.]\w)")
#: Examples of users' files.
NOT_OURS = {"shop/app.py", "shop/tasks.py", "asgi.py"}


PATHS = [path.relative_to(PROJECT) for folder in (PACKAGE, PROJECT / "tests") for path in folder.rglob("*.*")]


def exists(name: str) -> bool:
    """In the package or the tests, as the end of a path: with all folders that are named."""
    return any(f"/{path.as_posix()}".endswith(f"/{name}") for path in PATHS)


def test_docstrings_and_comments_name_files():
    said = [text for path in SOURCES for _, text in PROSE[path.suffix](path.read_text())]
    named = {name for text in said for name in FILE.findall(text)}
    assert len(named) > 15
    assert {"schema.lua", "lua/lib/identity.lua"} <= named


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_file_that_a_docstring_or_a_comment_names_exists(path: Path):
    missing = [
        f"{path.relative_to(PROJECT)}:{line}: {name}"
        for line, said in PROSE[path.suffix](path.read_text())
        for name in FILE.findall(said)
        if name not in NOT_OURS and not exists(name)
    ]
    assert missing == []
