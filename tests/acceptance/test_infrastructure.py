"""The parts that the other tests are built with work as expected. Plain Celery tasks only.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from amqp.exceptions import NotAllowed
from kombu import Connection
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster, RabbitMQTestBroker
from pytest_celery.vendors.worker.tasks import add as node_add

from support import proxy as proxies
from support import servers
from support.history import Event, History, most_at_once, overlaps, spans
from support.processes import ManagedProcess, listening, survivors
from support.proxy import DroppingProxy, frame_end, words
from support.servers import RabbitServer, RedisServer, redis_binaries
from support.wait import stays, until
from support.workers import Broker, CeleryProcess, WorkerProcess, celery_command, environment, run_celery

pytest_plugins = ["pytester"]

StartWorker = Callable[..., WorkerProcess]
StartRedis = Callable[..., RedisServer]
LoadApp = Callable[..., ModuleType]

SLEEP = "support.apps.plain.sleep"


def _use_our_conftest(pytester: pytest.Pytester) -> None:
    tests = Path(__file__).resolve().parent.parent
    pytester.makeconftest((tests / "conftest.py").read_text())
    pytester.makeini(f"[pytest]\npythonpath = {tests}")


# -- waiting


def test_until_returns_the_value_or_reports_the_last_one() -> None:
    answers = iter([0, "", "here"])
    assert until(lambda: next(answers)) == "here"
    with pytest.raises(AssertionError, match=r"not within 0.05 s: three \(last value: \[\]\)"):
        until(list, timeout=0.05, message="three")


def test_stays_fails_at_once() -> None:
    stays(lambda: True, 0.05)
    begin = time.monotonic()
    with pytest.raises(AssertionError, match="did not stay"):
        stays(lambda: False, 60)
    assert time.monotonic() - begin < 30


# -- processes


def test_everything_that_a_process_left_behind_is_found_and_ended(tmp_path: Path) -> None:
    code = "import subprocess as s; child = s.Popen(['sleep', '600']); print('up', flush=True); child.wait()"
    process = ManagedProcess("parent", [sys.executable, "-c", code], env=dict(os.environ), directory=tmp_path)
    process.start()
    process.wait_for_log("up")
    [child] = process.children()
    process.kill(whole=False)
    assert not process.running
    assert process.pids() == [child]
    assert any("parent" in line for line in survivors())
    process.cleanup()
    assert not any("parent" in line for line in survivors())


def test_a_killed_test_run_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from support.servers import RedisServer\n"
        f"server = RedisServer(pathlib.Path({str(tmp_path)!r})).start()\n"
        "print(server.port, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL
    until(lambda: not listening(int(done.stdout)), message="the guard ends the server")


def test_a_process_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    process = ManagedProcess(
        "short", [sys.executable, "-c", "print('why it ended')"], env=dict(os.environ), directory=tmp_path
    )
    process.start()
    with pytest.raises(AssertionError, match="why it ended"):
        process.wait_for_log("ready", timeout=30)
    process.cleanup()


# -- Redis


@pytest.mark.parametrize("kind", sorted(redis_binaries()))
def test_redis_with_appendonly_keeps_its_data_over_a_kill(redis_factory: StartRedis, kind: str) -> None:
    server = redis_factory(appendonly=True, binary=redis_binaries()[kind])
    client = server.client()
    client.set("key", "value")
    server.kill()
    with pytest.raises(redis.ConnectionError):
        client.get("key")
    server.start()
    assert client.get("key") == "value"
    server.restart(empty=True)
    assert client.get("key") is None


def test_redis_takes_options(redis_factory: StartRedis) -> None:
    client = redis_factory(maxmemory="5mb", maxmemory_policy="allkeys-lru").client()
    assert client.config_get("maxmemory*")["maxmemory-policy"] == "allkeys-lru"
    assert client.config_get("maxmemory")["maxmemory"] == str(5 * 1024 * 1024)


def test_redis_can_be_paused(redis_server: RedisServer) -> None:
    client = redis_server.client(socket_timeout=0.1, retry=None)
    client.ping()
    redis_server.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    redis_server.resume()
    assert client.ping()


def test_each_redis_is_its_own(redis_factory: StartRedis) -> None:
    first, second = redis_factory(), redis_factory()
    first.client().set("key", 1)
    assert second.client().dbsize() == 0
    assert first.port != second.port


# -- RabbitMQ


def test_rabbitmq_missing_skips_but_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers.shutil, "which", lambda _: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        servers.rabbitmq_binary()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="CI is set"):
        servers.rabbitmq_binary()


def test_each_test_has_its_own_vhost(rabbit_server: RabbitServer, rabbit_url: str) -> None:
    with (
        rabbit_server.fresh_vhost() as other,
        Connection(rabbit_url) as mine,
        Connection(rabbit_server.url(other)) as theirs,
    ):
        mine.SimpleQueue("queue").put("hello")
        with pytest.raises(theirs.channel_errors):
            theirs.default_channel.queue_declare("queue", passive=True)
        assert mine.SimpleQueue("queue").get(timeout=30).payload == "hello"
    with Connection(rabbit_server.url(other)) as gone, pytest.raises(NotAllowed, match="not found"):
        gone.connect()


@pytest.mark.slow
def test_rabbitmq_can_be_killed_and_is_back_with_its_messages(rabbit_server: RabbitServer, rabbit_url: str) -> None:
    with Connection(rabbit_url) as connection:
        connection.SimpleQueue("durable").put("kept", delivery_mode=2)
        # A second trip through the queue's process: by then the message before it is on disk.
        connection.SimpleQueue("durable").qsize()
    rabbit_server.restart()
    with Connection(rabbit_url) as connection:
        assert connection.SimpleQueue("durable").get(timeout=30).payload == "kept"
    rabbit_server.kill()
    assert not listening(rabbit_server.port)
    rabbit_server.ensure_running()
    with Connection(rabbit_url) as connection:
        connection.connect()


# -- the proxy


def test_frames_are_found_whole() -> None:
    request = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
    assert frame_end(request + b"more") == len(request)
    assert all(frame_end(request[:cut]) is None for cut in range(len(request)))
    assert words(request) == [b"GET", b"k"]
    plain = [b"+OK\r\n", b"$-1\r\n", b"*-1\r\n", b"$0\r\n\r\n"]
    resp3 = [b"%1\r\n+a\r\n:1\r\n", b"|1\r\n+a\r\n+b\r\n:5\r\n"]
    assert [frame_end(reply) for reply in plain + resp3] == [len(reply) for reply in plain + resp3]


def test_a_lost_reply_is_of_a_script_that_ran(redis_server: RedisServer, proxy: DroppingProxy) -> None:
    with redis.Redis.from_url(proxy.url(), retry=None) as client:
        script = client.register_script("return redis.call('INCR', KEYS[1])")
        assert script(keys=["n"]) == 1
        lost = proxy.lose_reply("EVALSHA .* n$")
        with pytest.raises(redis.ConnectionError):
            script(keys=["n"])
        assert lost.wait()[0] == b"EVALSHA"
        assert redis_server.client().get("n") == "2"
        assert script(keys=["n"]) == 3  # only the next one was to be lost


def test_a_lost_request_never_ran(redis_server: RedisServer, proxy: DroppingProxy) -> None:
    with redis.Redis.from_url(proxy.url(), retry=None) as client:
        lost = proxy.lose_request(lambda request: request[0] == b"SET")
        with pytest.raises(redis.ConnectionError):
            client.set("key", "value")
        assert lost.lost == [[b"SET", b"key", b"value"]]
        assert redis_server.client().get("key") is None


def test_one_reply_of_a_pipeline_is_lost(redis_server: RedisServer, proxy: DroppingProxy) -> None:
    big = "x" * 300_000
    with redis.Redis.from_url(proxy.url(), retry=None) as client:
        lost = proxy.lose_reply("^SET b 1$")
        with pytest.raises(redis.ConnectionError):
            client.pipeline(transaction=False).set("a", big).set("b", 1).set("c", 1).execute()
        assert lost.wait() == [b"SET", b"b", b"1"]
        behind = redis_server.client()
        assert (behind.get("a"), behind.get("b"), behind.get("c")) == (big, "1", None)
        assert client.get("a") == big.encode()


def test_the_proxy_closes_while_it_takes_a_client(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slowly(*args: Any, connect: Any = socket.create_connection, **options: Any) -> socket.socket:
        asked.set()
        go_on.wait(10)
        return connect(*args, **options)

    monkeypatch.setattr(proxies.socket, "create_connection", slowly)
    for _ in range(20):
        proxy = DroppingProxy(redis_server.port)
        with socket.socket() as client:
            client.connect(("127.0.0.1", proxy.port))
            assert asked.wait(10)
            threading.Timer(0.01, go_on.set).start()
            proxy.close()
        asked.clear()
        go_on.clear()


def test_the_proxy_cuts_connections(redis_server: RedisServer, proxy: DroppingProxy) -> None:
    def cut_when_blocked() -> None:
        until(lambda: any(client["cmd"] == "brpop" for client in watcher.client_list()))
        proxy.cut()

    watcher = redis_server.client()
    thread = threading.Thread(target=cut_when_blocked)
    with redis.Redis.from_url(proxy.url(), retry=None, socket_timeout=10) as client:
        thread.start()
        with pytest.raises(redis.ConnectionError):
            client.brpop("nothing", timeout=60)
        thread.join()
        assert client.ping()


def test_the_proxy_refuses_and_delays(proxy: DroppingProxy) -> None:
    with redis.Redis.from_url(proxy.url(), retry=None) as client:
        client.ping()
        proxy.refuse()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.ping()
        proxy.accept()
        assert client.ping()
        proxy.delay(0.2)
        begin = time.monotonic()
        client.ping()
        assert time.monotonic() - begin >= 0.2
        proxy.pass_all()
        assert client.ping()


def test_the_proxy_passes_messages_to_subscribers(redis_server: RedisServer, proxy: DroppingProxy) -> None:
    with redis.Redis.from_url(proxy.url()) as client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("channel")
        pubsub.get_message(timeout=5)
        redis_server.client().publish("channel", "hello")
        message = until(lambda: pubsub.get_message(timeout=0.1))
        assert message["data"] == b"hello"


def test_the_proxy_serves_many_at_once(redis_server: RedisServer, proxy: DroppingProxy) -> None:
    def count() -> None:
        with redis.Redis.from_url(proxy.url()) as client:
            for _ in range(50):
                client.incr("n")

    threads = [threading.Thread(target=count) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert redis_server.client().get("n") == "500"


# -- workers


def test_a_worker_runs_tasks_and_records_them(
    broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    process = worker(broker)
    app = load_app(broker)
    assert app.add.delay(2, 3).get(timeout=30) == 5
    with pytest.raises(ValueError, match="as asked"):
        app.fail.delay().get(timeout=30)
    result = app.sleep.delay(0)
    result.get(timeout=30)
    [span] = history.spans(SLEEP)
    assert span.run == result.id
    assert span.start.pid in process.children()
    assert span.start.worker == process.hostname
    assert [event.outcome for event in history.ended()] == ["ValueError", "returned"]
    assert process.stop(timeout=30) == 0
    assert process.pids() == []


@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_every_execution_pool(redis_broker: Broker, worker: StartWorker, load_app: LoadApp, pool: str) -> None:
    worker(redis_broker, pool=pool)
    assert load_app(redis_broker).add.delay(2, 3).get(timeout=30) == 5


def test_a_worker_serves_the_queues_it_is_given(redis_broker: Broker, worker: StartWorker, load_app: LoadApp) -> None:
    worker(redis_broker, queues=["one", "two"], concurrency=1)
    app = load_app(redis_broker)
    assert app.add.apply_async((1, 1), queue="two").get(timeout=30) == 2
    assert app.add.apply_async((1, 1), queue="one").get(timeout=30) == 2


def test_a_killed_worker_leaves_a_start_without_an_end(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    process = worker(redis_broker)
    load_app(redis_broker).sleep.delay(600)
    until(lambda: history.started(SLEEP))
    pids = process.pids()
    assert len(pids) == 3
    deaths = process.kill()
    assert set(deaths) == set(pids)
    assert process.pids() == []
    [span] = history.spans()
    assert span.end is None
    assert span.start.monotonic < span.ended_at(deaths) < time.monotonic()


def test_one_child_of_a_worker_is_killed(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    process = worker(redis_broker)
    load_app(redis_broker).sleep.delay(600)
    busy = until(lambda: history.started(SLEEP))[0].pid
    assert process.kill_child(busy) == busy
    assert set(process.deaths) == {busy}
    assert busy not in process.children()
    assert process.running


def test_a_paused_worker_does_nothing_until_resumed(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp
) -> None:
    process = worker(redis_broker)
    process.pause()
    result = load_app(redis_broker).add.delay(1, 2)
    stays(lambda: not result.ready(), 0.5)
    process.resume()
    assert result.get(timeout=30) == 3


def test_a_paused_worker_can_be_stopped(redis_broker: Broker, worker: StartWorker) -> None:
    process = worker(redis_broker)
    process.pause()
    assert process.stop(timeout=30) == 0


def test_a_worker_that_cannot_start_says_why(redis_broker: Broker, worker: StartWorker) -> None:
    with pytest.raises(AssertionError, match="no_such_app"):
        worker(redis_broker, app="support.apps.no_such_app")


def test_workers_do_not_share_a_name(redis_broker: Broker, worker: StartWorker, load_app: LoadApp) -> None:
    one, other = worker(redis_broker), worker(redis_broker)
    replies = load_app(redis_broker).app.control.ping(timeout=3)
    assert {name for reply in replies for name in reply} == {one.hostname, other.hostname}


def test_a_worker_outlives_its_redis(redis_broker: Broker, worker: StartWorker, load_app: LoadApp) -> None:
    worker(redis_broker)
    app = load_app(redis_broker)
    assert app.add.delay(1, 1).get(timeout=30) == 2
    redis_broker.redis.restart(kill=True)
    assert app.add.delay(1, 2).get(timeout=30) == 3


def test_commands_run_to_their_end(redis_broker: Broker, worker: StartWorker) -> None:
    process = worker(redis_broker)
    done = run_celery("support.apps.plain", "inspect", "ping", "--json", broker=redis_broker)
    assert done.returncode == 0, done.stderr
    assert process.hostname in done.stdout


def test_beat_is_a_process_like_a_worker(redis_broker: Broker, tmp_path: Path) -> None:
    beat = CeleryProcess(
        "beat",
        celery_command("support.apps.plain", "beat", "-S", "celery.beat:Scheduler", "-l", "DEBUG"),
        directory=tmp_path,
        env=redis_broker.env(),
        ready_prompt="beat: Waking up",  # if it is told to end earlier, it ends, but not always with 0
    )
    try:
        beat.start()
        beat.wait_ready()
        assert beat.stop() == 0
    finally:
        beat.cleanup()


def test_the_log_of_a_failed_tests_worker_is_in_the_report(pytester: pytest.Pytester) -> None:
    _use_our_conftest(pytester)
    pytester.makepyfile(
        """
        def test_fails(redis_broker, worker):
            worker(redis_broker, app="support.apps.plain")
            assert False
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*log of worker-*", "*@test ready.*"])


# -- history


def _event(kind: str, job: str, at: float, execution: str = "", pid: int = 1) -> Event:
    return Event(kind, execution or job, job, "run", 0, None, pid, "w", at, at)


def test_overlaps_are_found_in_either_order() -> None:
    a, b = [_event("start", "a", 1), _event("end", "a", 3)], [_event("start", "b", 2), _event("end", "b", 4)]
    for events in (a + b, b + a):
        [(first, second)] = overlaps(events, {"a"}, {"b"})
        assert (first.job, second.job) == ("a", "b")
        assert overlaps(events, {"b"}, {"a"}) == [(first, second)]
        assert overlaps(events, {"a"}, {"a"}) == []
        assert most_at_once(events, {"a", "b"}) == 2
    later = [_event("start", "b", 3), _event("end", "b", 4)]
    assert overlaps(a + later, {"a"}, {"b"}) == []
    assert most_at_once(a + later, {"a", "b"}) == 1


def test_a_run_without_an_end_lasts_until_its_process_died() -> None:
    events = [_event("start", "a", 1, pid=7), _event("start", "b", 5), _event("end", "b", 6)]
    assert len(spans(events)) == 2
    assert len(overlaps(events, {"a"}, {"b"})) == 1  # the time of its end is unknown
    assert overlaps(events, {"a"}, {"b"}, deaths={7: 4.0}) == []
    assert len(overlaps(events, {"a"}, {"b"}, deaths={7: 5.5})) == 1


def test_history_of_many_writers_is_whole(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    worker(redis_broker, concurrency=4)
    worker(redis_broker, pool="threads", concurrency=4)
    app = load_app(redis_broker)
    results = [app.sleep.delay(0.01) for _ in range(100)]
    for result in results:
        result.get(timeout=30)
    assert len(history.ended(SLEEP)) == 100
    assert history.running() == []
    assert {span.run for span in history.spans()} == {result.id for result in results}
    assert most_at_once(history.events(), {SLEEP}) > 1


# -- pytest-celery on processes


def test_celery_setup(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(ping=True, control=True, docker=True)
    assert node_add.delay(2, 3).get(timeout=30) == 5
    celery_setup.worker.assert_log_exists("pytest_celery.vendors.worker.tasks.add")
    processes = celery_setup.worker.get_running_processes_info(["pid"])
    assert {info["pid"] for info in processes} == set(celery_setup.worker.container.process.pids())


@pytest.mark.slow
def test_a_worker_node_is_killed_and_restarted(celery_setup: CeleryTestSetup) -> None:
    node = celery_setup.worker
    node.kill()
    assert node.container.status == "exited"
    result = node_add.delay(1, 1)
    node.restart()
    assert node.container.status == "running"
    assert result.get(timeout=30) == 2
    node.restart(force=True)
    assert node_add.delay(1, 2).get(timeout=30) == 3


def test_a_command_runs_as_in_the_workers_container(celery_setup: CeleryTestSetup) -> None:
    code, output = celery_setup.worker.container.exec_run('python -c "import app; print(app.app.main)"')
    assert code == 0, output
    assert output.decode().strip().endswith("celery_test_app")


@pytest.mark.slow
class TestBrokerNode:
    @pytest.fixture
    def celery_broker(self, celery_redis_broker: RabbitMQTestBroker) -> RabbitMQTestBroker:
        return celery_redis_broker

    def test_a_broker_node_is_restarted(self, celery_setup: CeleryTestSetup) -> None:
        assert node_add.delay(1, 1).get(timeout=30) == 2
        celery_setup.broker.kill()
        celery_setup.broker.restart()
        assert node_add.delay(1, 2).get(timeout=30) == 3


@pytest.mark.slow
class TestClusterOfTwo:
    @pytest.fixture
    def celery_worker_cluster(
        self, celery_worker, worker_node, default_worker_cls, default_worker_app
    ) -> CeleryWorkerCluster:
        return CeleryWorkerCluster(celery_worker, default_worker_cls(worker_node(), default_worker_app))

    def test_two_worker_nodes(self, celery_setup: CeleryTestSetup) -> None:
        assert len(celery_setup.worker_cluster) == 2
        replies = celery_setup.app.control.ping(timeout=3)
        names = {name for reply in replies for name in reply}
        assert names == {node.hostname() for node in celery_setup.worker_cluster}


def test_docker_nodes_are_refused_not_replaced(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_our_conftest(pytester)
    monkeypatch.setenv("ORCHESTRATION_TEST_NODES", "docker")
    result = pytester.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not wired in this version*"])
