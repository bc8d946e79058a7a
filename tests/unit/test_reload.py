"""``up --reload`` notices changed code."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_orchestration.pools import reload
from celery_orchestration.pools.reload import CodeWatcher, ReloadUnavailable, describe, source_directories
from support.wait import until


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[queue.SimpleQueue[str]]:
    """The reports of a watcher of ``tmp_path``, which has started."""
    words: queue.SimpleQueue[str] = queue.SimpleQueue()
    (tmp_path / "shop").mkdir()
    watcher = CodeWatcher([tmp_path], words.put)
    watcher.start()
    probe = tmp_path / "probe.py"

    def at_work() -> bool:
        probe.write_text(f"{probe.stat().st_size if probe.exists() else 0}\n" * 2)
        try:
            return "probe.py" in words.get(timeout=2)
        except queue.Empty:
            return False

    until(at_work, 30, "the watcher is at work")
    try:
        yield words
    finally:
        watcher.stop()
        watcher.join(10)
    assert not watcher.is_alive()


def test_a_changed_module_is_named(heard: queue.SimpleQueue[str], tmp_path: Path) -> None:
    (tmp_path / "shop" / "tasks.py").write_text("x = 1\n")
    assert "shop/tasks.py" in heard.get(timeout=20)


def test_files_that_are_no_code_are_left_out(heard: queue.SimpleQueue[str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for directory in (".venv", "__pycache__", ".git"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "module.py").write_text("x")
    (tmp_path / "last.py").write_text("x")
    assert heard.get(timeout=20) == "last.py"


def test_of_many_files_a_few_are_named() -> None:
    here = Path("/project")
    assert describe(["/project/b.py", "/project/a.py"], [here]) == "a.py, b.py"
    assert describe([f"/project/{n}.py" for n in range(5)], [here]) == "0.py, 1.py, 2.py and 2 more"
    assert describe(["/elsewhere/a.py"], [here]) == "/elsewhere/a.py"


def test_without_watchfiles_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reload.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ReloadUnavailable, match=r"--reload needs watchfiles: pip install 'celery_orchestration\[up\]'"):
        CodeWatcher([tmp_path], print)


def test_the_directory_of_the_app_is_watched_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    app = Celery("celery_orchestration.pools", broker="memory://", set_as_current=False)
    assert source_directories(app) == [tmp_path, Path(reload.__file__).parent]
    monkeypatch.chdir(Path(reload.__file__).parents[2])
    assert source_directories(app) == [Path.cwd()]
