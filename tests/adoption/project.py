"""A whole user's project: its folder, its Redis at default settings, and the commands that people run in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.processes import ManagedProcess
from support.servers import RedisServer
from support.wait import until

PROJECTS = Path(__file__).resolve().parent / "projects"
_BIN = Path(sys.executable).parent
#: Extra time for a busy machine. These tests check no times.
PATIENCE = 60.0


class Project:
    """A copy of ``tests/adoption/projects/<name>``; everything runs in processes of its own."""

    def __init__(self, name: str, app: str, directory: Path, env: Mapping[str, str] | None = None) -> None:
        self.app = app
        self.directory = directory / name
        shutil.copytree(PROJECTS / name, self.directory, ignore=shutil.ignore_patterns("__pycache__"))
        self.redis = RedisServer(directory).start()
        self.journal_path = directory / "journal.jsonl"
        foreign = ("CELERY_", "TEST_", "PYTEST_", "PYTHON", "DJANGO_", "SENTRY_", "OTEL_")
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        self.env |= {
            "PATH": f"{_BIN}{os.pathsep}{self.env.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "SHOP_REDIS": self.redis.url(0),
            "SHOP_JOURNAL": str(self.journal_path),
            "PROJ_REDIS": self.redis.url(0),
            "PLAY_REDIS": self.redis.url(0),
            "PLAY_STORE": self.redis.url(1),
            "WATCH_REDIS": self.redis.url(0),
            "WATCH_FILE": str(self.journal_path),
            **(env or {}),
        }
        self.processes: list[ManagedProcess] = [self.redis.process]

    # -- commands that go on

    def start(self, *command: str, ready: str, name: str = "", env: Mapping[str, str] | None = None) -> ManagedProcess:
        """Starts a command that runs on, and waits until its log says that it is ready."""
        process = ManagedProcess(
            f"{name or command[0]}-{uuid.uuid4().hex[:6]}",
            [str(_BIN / command[0]), *command[1:]],
            env={**self.env, **(env or {})},
            directory=self.directory,
        )
        self.processes.append(process)
        process.start()
        process.wait_for_log(ready, PATIENCE)
        return process

    def worker(self, *options: str, env: Mapping[str, str] | None = None) -> ManagedProcess:
        """``celery -A app worker``, as people start it: two slots, otherwise default options."""
        name = f"worker{len(self.processes)}@test"
        command = ("celery", "-A", self.app, "worker", "-n", name, "-c", "2", "-l", "INFO", *options)
        return self.start(*command, ready=f"{name} ready.", name="worker", env=env)

    def beat(self, *options: str, ready: str = "beat: Starting...", env: Mapping[str, str] | None = None) -> Any:
        command = ("celery", "-A", self.app, "beat", "-l", "INFO", "--pidfile=", *options)
        return self.start(*command, ready=ready, name="beat", env=env)

    # -- commands that end

    def run(
        self, *command: str, code: int | None = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end. Its exit code must be ``code`` (None: any)."""
        done = subprocess.run(
            [str(_BIN / command[0]), *command[1:]],
            cwd=self.directory,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=PATIENCE * 2,
            check=False,
        )
        if code is not None:
            assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def celery(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run("celery", "-A", self.app, *arguments, **options)

    def orchestration(self, *arguments: str, **options: Any) -> str:
        return self.celery("orchestration", *arguments, **options).stdout

    def asked(self, *arguments: str, **options: Any) -> Any:
        """The answer of a command with ``--json``."""
        return json.loads(self.orchestration(*arguments, "--json", **options))

    def python(self, code: str, **options: Any) -> Any:
        """Executes ``code`` in the project, as a view or a shell would. Returns the argument of its call of
        ``answer()``."""
        setup = "import json, os, sys\nsys.path.insert(0, os.getcwd())\n"
        if (self.directory / "manage.py").exists():
            setup += "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')\nimport django\ndjango.setup()\n"
        setup += "def answer(value): print('answer:' + json.dumps(value, default=repr))\n"
        done = self.run("python", "-c", setup + code, **options)
        answers = [line for line in done.stdout.splitlines() if line.startswith("answer:")]
        return json.loads(answers[-1].removeprefix("answer:")) if answers else None

    # -- what happened

    def journal(self, task: str = "", event: str = "") -> list[dict[str, Any]]:
        """The lines that the project's tasks wrote."""
        if not self.journal_path.exists():
            return []
        lines = [json.loads(line) for line in self.journal_path.read_text("utf-8").splitlines() if line.endswith("}")]
        return [
            line for line in lines if line.get("task", "").startswith(task) and (not event or line["event"] == event)
        ]

    def until_journal(self, task: str, count: int, event: str = "end") -> list[dict[str, Any]]:
        return until(
            lambda: found if len(found := self.journal(task, event)) >= count else None,
            PATIENCE,
            f"{task} has {count} times {event!r}",
            poll=0.1,
        )

    def logs(self) -> str:
        return "\n".join(f"--- {process.name}\n{process.tail()}" for process in self.processes)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.cleanup()
        self.redis.cleanup()
