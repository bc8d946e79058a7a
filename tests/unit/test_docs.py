"""The documents agree with the code and with each other: links, options, settings, figures."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from celery_orchestration.job.options import JobOptions
from celery_orchestration.job.settings import Settings
from celery_orchestration.operate import schema
from celery_orchestration.testing import decide

PROJECT = Path(__file__).parents[2]
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PROJECT.glob("examples/**/*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_leads_somewhere(page: Path):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_file_that_contributing_names_exists():
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:celery_orchestration|tests|docs|examples|bench)/[\w./]*)`", text))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (PROJECT / name).exists()] == []


def test_the_worked_examples_name_as_many_files_as_they_promise():
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    block = r"<!-- worked example: ([\w ]+), (\d+) files -->(.+?)<!-- end of worked example -->"
    examples = re.findall(block, text, re.DOTALL)
    assert [name for name, _, _ in examples] == ["gate rule", "job option", "figure per run", "status column"]
    for name, count, steps in examples:
        edited = re.findall(r"^\d+\. `([\w./]+)`:", steps, re.MULTILINE)
        assert len(edited) == int(count) <= (8 if name == "gate rule" else 4)


def test_the_page_of_options_has_every_option_and_setting():
    page = (PROJECT / "docs" / "options.md").read_text()
    options, settings = page.split("## Settings")
    assert [name for name in JobOptions.model_fields if f"| `{name}`" not in options] == []
    assert [name for name in Settings.model_fields if f"| `{name}`" not in settings] == []


def test_every_figure_of_the_readme_is_on_the_page_of_figures():
    readme = (PROJECT / "README.md").read_text()
    page = (PROJECT / "docs" / "figures.md").read_text()
    table = readme[readme.index("| measured |") : readme.index("## Where to read on")]
    rows = [line.split(" | ") for line in table.splitlines()[2:] if line.startswith("|")]
    assert len(rows) > 10
    numbers = {number for row in rows for cell in row[1:] for number in re.findall(r"\d[\d.,]*\d", cell)}
    assert {number for number in numbers if number not in page} == set()


def test_the_example_of_the_readme_does_what_it_says(monkeypatch: pytest.MonkeyPatch):
    (code,) = re.findall(r"```python\n(.+?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    shop = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(compile(code, "shop.py", "exec"), vars(shop))
    waits = decide(shop.app, job="shop.process_data", running=["shop.fetch_data"])
    assert (waits.starts, waits.waits_for) == (False, "shop.fetch_data")
    assert not decide(shop.app, job="shop.process_data", ended={"shop.fetch_data": "failed"})
    assert not decide(shop.app, job="shop.cleanup", running=["shop.process_data"])
    assert not decide(shop.app, job="shop.fetch_data", running=["shop.fetch_data"])
    assert decide(shop.app, job="shop.process_data")


def test_the_page_about_json_is_up_to_date():
    assert (PROJECT / "docs" / "json.md").read_text() == schema.page(), "make docs writes it anew"
