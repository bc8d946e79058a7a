"""(i) How much of Redis idle workers take: 100 of them, simulated by their consuming connections.

Each has kombu's connection, channel and event loop as in a worker; 25 share a process, and all consume from one queue.
At first nothing is sent, and Redis's commands are counted: workers that Redis notifies of messages look only every few
seconds. Then 50 messages a second are sent, each for the first worker that takes it, and Redis's processor time is
measured. The same is measured with kombu's own transport.

``python -m bench.idle URL COUNT KIND`` is one of the processes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from kombu import Connection, Consumer, Producer, Queue
from kombu.asynchronous import Hub

from bench import PROJECT
from bench.stage import PATIENCE, Others, Stage, cpu_seconds
from celery_orchestration.node.stores import Names
from celery_orchestration.worker.fetch.channel import LOOK_ANYWAY
from celery_orchestration.worker.fetch.fetcher import Fetcher
from celery_orchestration.worker.fetch.transport import make_reliable
from support.servers import RedisServer
from support.workers import environment

VARIANTS = (("celery", "plain Celery"), ("reliable", "with this package"))
WORKERS, PROCESSES, RATE = 100, 4, 50
QUEUE = "idle"
PREFETCH = 4


def connection_of(url: str, kind: str, number: int) -> Connection:
    """Prepares the connection as a worker prepares its consuming connection."""
    connection = Connection(url)
    if kind == "reliable":
        fetcher = Fetcher(f"idle-{number}", f"idle-{number}@localhost", Names.of("idle"), 1.0, lambda: PREFETCH)
        fetcher.registered = True
        make_reliable(connection, fetcher)
    return connection


def consume(connection: Connection, hub: Hub, got: Any = lambda: None) -> None:
    """Consumes from now on, while the hub runs."""

    def callback(body: Any, message: Any) -> None:
        message.ack()
        got()

    channel = connection.default_channel
    channel.basic_qos(0, PREFETCH, False)
    Consumer(channel, [Queue(QUEUE)], callbacks=[callback]).consume()
    connection.register_with_event_loop(hub)


def main(url: str, count: int, kind: str) -> None:
    hub = Hub()
    connections = [connection_of(url, kind, number) for number in range(count)]
    for connection in connections:
        consume(connection, hub)
    print("ready", flush=True)
    hub.run_forever()


def measure(stage: Stage) -> dict[str, Any]:
    return {name: {"title": title, **_measure(stage, name)} for name, title in VARIANTS}


def _measure(stage: Stage, kind: str) -> dict[str, Any]:
    seconds = stage.size.idle_seconds
    with stage.redis() as server:
        command = [sys.executable, "-m", "bench.idle", server.url(0), str(WORKERS // PROCESSES), kind]
        env = environment(PROJECT)
        processes = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            time.sleep(LOOK_ANYWAY)
            before, used = _commands(server), cpu_seconds(server.process.pid)
            time.sleep(seconds)
            asked = (_commands(server) - before) / seconds / WORKERS
            resting = (cpu_seconds(server.process.pid) - used) / seconds
            others, used = Others(), cpu_seconds(server.process.pid)
            took = _send(server, RATE * seconds)
            busy = (cpu_seconds(server.process.pid) - used) / took
            left = _wait_empty(server)
            share = others.share()
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    if left:
        stage.problem(f"idle: {kind}: {left} messages were not fetched")
    stage.say(
        f"idle: {kind:8} {WORKERS} workers: {asked:.2f} commands a second each, Redis {resting:.1%} of a core; "
        f"at {RATE * seconds / took:.0f} messages a second {busy:.1%}"
    )
    return {"commands": asked, "resting": resting, "share": busy, "rate": RATE * seconds / took, "others": share}


def _commands(server: RedisServer) -> int:
    """The number of commands that Redis has executed, including those of scripts and of housekeeping connections."""
    return int(server.client(0).info("stats")["total_commands_processed"])


def _send(server: RedisServer, count: int) -> float:
    """Returns how long it took."""
    begun = time.monotonic()
    with Connection(server.url(0)) as connection:
        producer = Producer(connection.default_channel)
        for number in range(count):
            producer.publish({"n": number}, routing_key=QUEUE)
            time.sleep(max(0.0, begun + (number + 1) / RATE - time.monotonic()))
    return time.monotonic() - begun


def _wait_empty(server: RedisServer) -> int:
    looking, deadline = server.client(0), time.monotonic() + PATIENCE
    while (left := looking.llen(QUEUE)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return int(left)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
