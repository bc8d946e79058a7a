"""``celery -A shop orchestration up``: everything on one machine, in a terminal, and nothing is left behind.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from support.processes import free_port, listening
from support.servers import RedisServer
from support.terminal import Terminal
from support.wait import until
from support.workers import celery_command, environment

MARK = "UP_TEST"
#: Extra time for a busy machine: a worker has to start.
PATIENCE = 60.0

SHOP = """
import json, os, time
from celery import Celery
from celery_orchestration import OrchestratedTask

app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"

def note(*words):
    file = os.open(os.environ["SHOP_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (json.dumps(words) + "\\n").encode())
    os.close(file)

@app.task(base=OrchestratedTask, on_crash="requeue")
def work(name, seconds):
    note("began", name)
    time.sleep(seconds)
    note("ended", name)

@app.task(base=OrchestratedTask, interval_seconds=2)
def tick():
    note("tick", VERSION)

VERSION = 1
"""


class Shop:
    """A project with one module, and ``up`` in it."""

    def __init__(self, directory: Path, broker: str) -> None:
        self.directory, self.broker = directory, broker
        self.journal_path = directory / "journal"
        self.module = directory / "shop.py"
        self.module.write_text(SHOP)
        self.mark = uuid.uuid4().hex
        self.env = {
            **environment(directory),
            "SHOP_BROKER": broker,
            "SHOP_JOURNAL": str(self.journal_path),
            MARK: self.mark,
        }

    def command(self, *options: str) -> list[str]:
        found = celery_command("shop", "orchestration", "up", *options)
        found.insert(3, f"--workdir={self.directory}")
        return found

    def up(self, *options: str) -> Terminal:
        return Terminal(self.command(*options), self.env, columns=200)

    def fails(self, *options: str) -> str:
        """Its error message. It ends by itself, and leaves no process running."""
        ended = subprocess.run(
            self.command(*options), env=self.env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert ended.returncode in (1, 2), ended
        assert "Traceback" not in ended.stdout + ended.stderr
        assert self.processes() == []
        return ended.stdout + ended.stderr

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                # redis-server overwrites its environment with its title.
                ours = process.environ().get(MARK) == self.mark or process.ppid() in {one.pid for one in found}
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def process(self, *words: str) -> psutil.Process | None:
        """The oldest process with these words in its command line."""
        found = [one for one in self.processes() if all(word in command_line(one) for word in words)]
        return min(found, key=lambda one: one.create_time(), default=None)

    def ends(self, seconds: float = PATIENCE) -> None:
        until(lambda: not self.processes(), seconds, "nothing is left")

    def send(self, name: str, seconds: float) -> None:
        code = f"import shop; shop.work.delay({name!r}, {seconds!r})"
        command = [celery_command("shop")[0], "-c", code]
        subprocess.run(command, env=self.env, cwd=self.directory, check=True, timeout=PATIENCE)

    def journal(self) -> list[list[Any]]:
        if not self.journal_path.exists():
            return []
        return [json.loads(line) for line in self.journal_path.read_text().splitlines()]

    def notes(self, *words: Any, times: int = 1) -> None:
        until(lambda: self.journal().count([*words]) >= times, PATIENCE, f"{words} is noted {times} times")

    def asked(self, *arguments: str) -> Any:
        command = celery_command("shop", "orchestration", *arguments, "--json")
        done = subprocess.run(
            command, env=self.env, cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return json.loads(done.stdout)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def make_shop(tmp_path: Path) -> Iterator[Callable[[str], Shop]]:
    with contextlib.ExitStack() as cleanups:

        def make(broker: str) -> Shop:
            shop = Shop(tmp_path, broker)
            cleanups.callback(_end, shop)
            return shop

        yield make


def _end(shop: Shop) -> None:
    for process in shop.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shop.ends(10)


@pytest.fixture
def shop(make_shop: Callable[[str], Shop], port: int) -> Shop:
    return make_shop(f"redis://127.0.0.1:{port}/0")


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return ""


def text(terminal: Terminal) -> str:
    return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", terminal.written).decode(errors="replace").replace("\r", "")


def says(terminal: Terminal, words: str) -> None:
    until(lambda: re.search(words, text(terminal), re.M), PATIENCE, f"{words!r} is said\n{text(terminal)}")


CTRL_C = "\x03"


# -- in a terminal


def test_one_command_runs_it_all_and_ctrl_c_drains_it(shop: Shop, port: int) -> None:
    with shop.up() as terminal:
        shop.notes("tick", 1)
        shop.send("slow", 4)
        shop.notes("began", "slow")
        assert shop.asked("health", "--scheduler")["ok"]
        says(terminal, r"dashboard +\| The dashboard is at http://127\.0\.0\.1:\d+")
        address = re.findall(r"The dashboard is at (http://\S+)", text(terminal))[0]
        with urlopen(address, timeout=PATIENCE) as page:
            assert b"shop.work" in page.read()
        terminal.press(CTRL_C)
        says(terminal, r"up +\| draining")
        assert terminal.ends(PATIENCE) == 0, text(terminal)
    shop.ends()
    assert not listening(port)
    assert ["ended", "slow"] in shop.journal()
    shown = text(terminal)
    assert re.search(rf"^up +\| starts a private Redis at 127\.0\.0\.1:{port}, data in ", shown, re.M)
    assert re.search(r"^scheduler +\| .*This scheduler leads", shown, re.M)
    assert re.search(r"^default-1 +\| .* ready\.", shown, re.M)
    assert re.search(r"^up +\| everything has ended", shown, re.M)
    assert "Traceback" not in shown
    # Each name has a colour of its own.
    assert len(set(re.findall(rb"\x1b\[(\d+)m(?:up|scheduler|default-1) +\|", terminal.written))) == 3


def test_a_dashboard_whose_port_is_taken_gets_another_one(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, shop.up("--dashboard-port", str(port_of(taken))) as it:
        says(it, r"The dashboard is at http://127\.0\.0\.1:\d+")
        assert f":{port_of(taken)}" not in re.findall(r"The dashboard is at (\S+)", text(it))[0]
        it.press(CTRL_C)
        assert it.ends(PATIENCE) == 0
    shop.ends()


def test_without_a_dashboard(shop: Shop) -> None:
    with shop.up("--no-dashboard") as terminal:
        says(terminal, r"default-1 .* ready\.")
        assert shop.process("orchestration dashboard") is None
        terminal.press(CTRL_C)
        assert terminal.ends(PATIENCE) == 0
    shop.ends()


def test_a_second_ctrl_c_stops_at_once_and_what_ran_goes_back(shop: Shop, port: int) -> None:
    with shop.up() as terminal:
        says(terminal, r"default-1 .* ready\.")
        shop.send("long", 600)
        shop.notes("began", "long")
        terminal.press(CTRL_C)
        says(terminal, r"draining")
        terminal.press(CTRL_C)
        assert terminal.ends(20) == 0, text(terminal)
    shop.ends(5)
    assert not listening(port)
    assert ["ended", "long"] not in shop.journal()
    # The run is not lost: the next ``up`` starts it again.
    with shop.up():
        shop.notes("began", "long", times=2)


def test_killed_itself_it_leaves_nothing_behind_and_loses_nothing(shop: Shop, port: int) -> None:
    with shop.up() as terminal:
        says(terminal, r"default-1 .* ready\.")
        shop.send("short", 3)
        shop.notes("began", "short")
        up = shop.process("orchestration", "up")
        assert up is not None
        up.send_signal(signal.SIGKILL)
        # Workers drain by themselves; Redis stays until they have ended.
        shop.notes("ended", "short")
        shop.ends()
    assert not listening(port)
    with shop.up() as terminal:
        says(terminal, r"default-1 .* ready\.")
        [run] = [one for one in shop.asked("history", "shop.work") if one["outcome"] == "succeeded"]
        assert run["recoveries"] == 0
    assert shop.journal().count(["began", "short"]) == 1


def test_a_closed_terminal_drains(shop: Shop) -> None:
    with shop.up() as terminal:
        says(terminal, r"default-1 .* ready\.")
        up = shop.process("orchestration", "up")
        assert up is not None
        up.send_signal(signal.SIGHUP)
        assert terminal.ends(PATIENCE) == 0
    shop.ends()


def test_processes_that_die_are_started_again(shop: Shop) -> None:
    with shop.up() as terminal:
        says(terminal, r"default-1 .* ready\.")
        for words in (("celery", " beat "), ("redis-server",), ("redis_keeper",), (" worker ", "default")):
            victim = until(lambda words=words: shop.process(*words), PATIENCE, f"{words} runs")
            victim.kill()
            until(
                lambda words=words, victim=victim: (found := shop.process(*words)) and found.pid != victim.pid,
                PATIENCE,
                f"{words} runs again\n{text(terminal)}",
            )
        ticks = len(shop.journal())
        until(lambda: len(shop.journal()) > ticks + 1, PATIENCE, f"it ticks again\n{text(terminal)}")
        terminal.press(CTRL_C)
        assert terminal.ends(PATIENCE) == 0, text(terminal)
    assert re.search(r"^up +\| scheduler was ended by SIGKILL; it is restarted in 1 s", text(terminal), re.M)
    assert re.search(r"^up +\| the private Redis has died and is restarted", text(terminal), re.M)
    shop.ends()


# -- Redis


def test_a_redis_that_listens_is_used_and_stays(make_shop: Callable[[str], Shop], redis_server: RedisServer) -> None:
    shop = make_shop(redis_server.url(0))
    with shop.up() as terminal:
        shop.notes("tick", 1)
        terminal.press(CTRL_C)
        assert terminal.ends(PATIENCE) == 0, text(terminal)
    assert f"uses the Redis at 127.0.0.1:{redis_server.port}" in text(terminal)
    assert redis_server.client().ping()
    assert list((shop.directory / ".orchestration").glob("redis-*")) == []
    shop.ends()


def test_data_is_kept_from_one_up_to_the_next(shop: Shop) -> None:
    for times in (1, 2):
        with shop.up("--data", "kept") as terminal:
            says(terminal, r"default-1 .* ready\.")
            shop.send(f"run {times}", 0)
            shop.notes("ended", f"run {times}")
            history = until(
                lambda times=times: len(found := shop.asked("history", "shop.work")) >= times and found, PATIENCE
            )
            assert len(history) == times
            terminal.press(CTRL_C)
            assert terminal.ends(PATIENCE) == 0
    assert (shop.directory / "kept").is_dir()
    shop.ends()


# -- code


def test_changed_code_is_loaded(shop: Shop) -> None:
    with shop.up("--reload") as terminal:
        shop.notes("tick", 1)
        shop.module.write_text(SHOP.replace("VERSION = 1", "VERSION = 2"))
        says(terminal, r"^up +\| shop\.py changed: workers and scheduler are restarted")
        shop.notes("tick", 2)
        terminal.press(CTRL_C)
        assert terminal.ends(PATIENCE) == 0, text(terminal)
    shop.ends()


def test_a_changed_table_of_pools_is_loaded(shop: Shop) -> None:
    table = "\nfrom celery_orchestration import Pool\napp.conf.orchestration_pools = {'default': Pool(min=%d, max=2)}\n"
    shop.module.write_text(SHOP + table % 1)
    with shop.up("--reload") as terminal:
        says(terminal, r"default-1 .* ready\.")
        shop.module.write_text(SHOP + table % 2)
        says(terminal, r"^default-2 +\| .* ready\.")


def test_code_that_cannot_be_loaded_for_a_while_is_waited_for(shop: Shop) -> None:
    with shop.up("--reload") as terminal:
        shop.notes("tick", 1)
        shop.module.write_text("this is no Python\n")
        says(terminal, r"invalid syntax")
        shop.module.write_text(SHOP.replace("VERSION = 1", "VERSION = 2"))
        shop.notes("tick", 2)
        terminal.press(CTRL_C)
        assert terminal.ends(PATIENCE) == 0, text(terminal)
    shop.ends()


# -- pools


def test_without_a_table_each_pool_that_a_job_names_has_a_worker(shop: Shop) -> None:
    more = """
        @app.task(base=OrchestratedTask, pool="images")
        def resize():
            note("resized")
    """
    shop.module.write_text(SHOP + textwrap.dedent(more))
    with shop.up() as terminal:
        says(terminal, r"^images-1 +\| .* ready\.")
        code = "import shop; shop.resize.delay()"
        subprocess.run([celery_command("shop")[0], "-c", code], env=shop.env, cwd=shop.directory, check=True)
        shop.notes("resized")


def test_the_table_of_the_app_decides(shop: Shop) -> None:
    table = """
        from celery_orchestration import Pool
        app.conf.orchestration_pools = {"default": Pool(min=2, max=2, kind="threads", concurrency=3)}
    """
    shop.module.write_text(SHOP + textwrap.dedent(table))
    with shop.up() as terminal:
        says(terminal, r"^default-2 +\| .* ready\.")
        workers = until(lambda: len(found := shop.asked("status")["workers"]) == 2 and found, PATIENCE)
        assert {(one["execution_pool"], one["slots"]) for one in workers} == {("thread", 3)}


# -- output that is no terminal


def test_without_a_terminal_there_is_no_colour(shop: Shop) -> None:
    log = shop.directory / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(shop.command(), env=shop.env, stdout=file, stderr=subprocess.STDOUT)
    try:
        until(lambda: "default-1 | " in log.read_text() and "ready." in log.read_text(), PATIENCE, "a worker is ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert "\x1b" not in log.read_text()
    shop.ends()


# -- what cannot be


def test_an_app_is_needed(shop: Shop) -> None:
    command = [one for one in shop.command() if one not in ("-A", "shop")]
    ended = subprocess.run(command, env=shop.env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    assert "name the app: celery -A app orchestration up" in ended.stderr


def test_a_port_that_another_program_uses_is_reported(make_shop: Callable[[str], Shop]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = make_shop(f"redis://127.0.0.1:{port}/0").fails()
    assert f"Error: port {port} is taken by something that is no Redis" in said


def test_a_data_directory_that_is_a_file_is_reported(shop: Shop) -> None:
    (shop.directory / "file").write_text("")
    assert "cannot keep its data in" in shop.fails("--data", "file/below")


def test_another_broker_that_does_not_answer_is_reported(
    make_shop: Callable[[str], Shop], redis_server: RedisServer
) -> None:
    shop = make_shop(f"amqp://guest:guest@127.0.0.1:{free_port()}//")
    shop.env["CELERY_ORCHESTRATION_REDIS_URL"] = redis_server.url(0)
    said = shop.fails()
    assert re.search(r"the broker at amqp://guest:\*\*@127\.0\.0\.1:\d+// does not answer", said)


def test_a_module_that_cannot_be_loaded_is_reported(shop: Shop) -> None:
    shop.module.write_text(SHOP + "\napp.conf.include = ['missing']\n")
    assert "missing" in shop.fails()


def test_a_mistake_in_the_table_is_reported(shop: Shop) -> None:
    shop.module.write_text(SHOP + "\napp.conf.orchestration_pools = {'default': {'min': 3, 'max': 2}}\n")
    assert "min=3 is more than max=2" in shop.fails()


def test_reload_without_watchfiles_is_reported(shop: Shop) -> None:
    """A module of that name that the import system does not find."""
    hidden = shop.directory / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as u\n_find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'watchfiles' else _find(name, *a)\n"
    )
    assert "--reload needs watchfiles: pip install 'celery_orchestration[up]'" in shop.fails("--reload")


def test_a_terminal_that_is_gone_does_not_stop_the_drain(shop: Shop) -> None:
    """The reader of its output has closed it."""
    reading, writing = os.pipe()
    process = subprocess.Popen(shop.command(), env=shop.env, stdout=writing, stderr=subprocess.STDOUT)
    os.close(writing)
    try:
        shop.notes("tick", 1)
        os.close(reading)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    shop.ends()
