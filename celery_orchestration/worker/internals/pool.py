"""Execution pools: prefork, threads, gevent, solo."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.worker.request import task_ready
from kombu.asynchronous.semaphore import LaxBoundedSemaphore


def size_of(pool: Any) -> int | None:
    """How many processes, threads or greenlets an execution pool has now; None before it has started."""
    try:
        size = getattr(pool, "num_processes", None)
    except TypeError:
        return None  # before Celery 5.6, gevent's pool raises this until it has started
    return size if isinstance(size, int) else None


def can_kill(pool: Any) -> bool:
    """Whether this pool, or a pool of this class, runs code in processes, which can be killed."""
    return isinstance(pool, PreforkPool) or (isinstance(pool, type) and issubclass(pool, PreforkPool))


def children(pool: Any) -> list[Any]:
    """The processes of a prefork pool. Empty for other pools, and for one that is down."""
    found = getattr(getattr(pool, "_pool", None), "_pool", None)
    return [process for process in found or () if getattr(process, "pid", None)] if isinstance(found, list) else []


def process_of(pool: Any, pid: int | None) -> Any:
    """The child process of a prefork pool, or None if the pool has no such child (any more, or at all)."""
    for process in getattr(getattr(pool, "_pool", None), "_pool", None) or ():
        if getattr(process, "pid", None) == pid:
            return process
    return None


def is_gone(process: Any) -> bool:
    return not process._is_alive()


def kill(process: Any) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def take_back(result: Any) -> None:
    """On threads: takes a run back that has not begun. Before Celery 5.7 the pool would begin all its runs while it
    stops. (Prefork gives such runs back when the consumer is closed, see guard_flush.)"""
    if hasattr(result, "f"):
        result.f.cancel()


def is_over(result: Any) -> bool:
    """Whether the code behind a result has ended. `result`: of apply_async, on threads or gevent. With the other pools
    no code outlives the pool."""
    if hasattr(result, "f"):
        return bool(result.f.done())
    return bool(result.ready()) if hasattr(result, "link") else True


def is_with_pool(request: Any) -> bool:
    """Whether an execution pool has or had this request. It has not if the request only waited for a slot, or the pool
    forgot it."""
    result = request._apply_result() if callable(request._apply_result) else request._apply_result
    if result is None:
        return request.time_start is not None
    cache = getattr(result, "_cache", None)
    return cache is None or result._job in cache or bool(result.ready())


def take_free_slot(semaphore: LaxBoundedSemaphore) -> bool:
    """Takes a slot of the worker's semaphore if one is free now; never queues for one. execute_using_pool needs such a
    slot on prefork, and the pool releases it."""
    if semaphore.value <= 0:
        return False
    semaphore.acquire(_nothing)
    return True


def _nothing() -> None:
    pass


def before_begin(controller: Any, may_begin: Callable[[Any], bool]) -> None:
    """Drops a request that has waited for a slot if `may_begin(request)` is False. On prefork only: the other pools get
    their requests at once."""
    begin = controller._process_task

    def process_task(request: Any) -> None:
        if may_begin(request):
            begin(request)
        else:
            task_ready(request)
            controller._quick_release()

    if controller.semaphore is not None:
        controller._process_task = process_task


def on_code_ended(pool: Any, ended: Callable[[], None]) -> None:
    """Calls `ended()`, in any thread, when code in the pool has ended. On threads and gevent only: prefork itself wakes
    the event loop. Call this before the first request class is made, because that class keeps `apply_async`."""
    apply_async = pool.apply_async
    if hasattr(apply_async, "ended"):
        apply_async.ended = ended
        return

    def apply_and_watch(*args: Any, **kwargs: Any) -> Any:
        result = apply_async(*args, **kwargs)
        if hasattr(result, "f"):
            result.f.add_done_callback(lambda _: apply_and_watch.ended())  # type: ignore[attr-defined]
        elif hasattr(result, "link"):
            result.link(lambda _: apply_and_watch.ended())  # type: ignore[attr-defined]
        return result

    apply_and_watch.ended = ended  # type: ignore[attr-defined]
    if not can_kill(pool):
        pool.apply_async = apply_and_watch


def guard_flush(pool: Any, ours: Callable[[], Iterable[Any]], lost: Callable[[list[Any]], None]) -> None:
    """Keeps runs from vanishing when the broker connection is lost.

    Consumer.on_close calls pool.flush(). That forgets every pool job that no child has accepted yet (before Celery 5.7
    also those that run), without a callback: Celery relies on the broker to deliver the message again. But some of them
    were already written to a child, and will run there unnoticed. So after flush(), the jobs that a child has or is
    getting are added to the pool again, and `lost` gets the requests of those that never left the main process. Plain
    tasks are treated likewise when the worker stops: the message of a task that a child has must not go back, and the
    pool must not wait for an end of the task that never comes.

    `ours()` returns the requests of runs that were given to the pool.
    """
    inner, flush = pool._pool, pool.flush
    if not hasattr(inner, "outbound_buffer") or hasattr(flush, "guarded"):
        return

    def guarded_flush() -> None:
        jobs = [(req, req._apply_result() if req._apply_result else None) for req in ours()]
        buffered = {id(job) for job in inner.outbound_buffer}
        known = {id(job) for _, job in jobs}
        plain = [job for job in inner._cache.values() if id(job) not in known]
        flush()
        for job in plain:
            if not job.ready() and (job._accepted or (id(job) not in buffered and hasattr(job, "_write_to"))):
                inner._cache.setdefault(job._job, job)
        gone = []
        for req, job in jobs:
            if req.time_start is None and (job is None or (id(job) in buffered and not job._accepted)):
                gone.append(req)
            elif job is not None and not job.ready():
                inner._cache.setdefault(job._job, job)
        lost(gone)

    guarded_flush.guarded = True  # type: ignore[attr-defined]
    pool.flush = guarded_flush


def watch_exits(pool: Any) -> None:
    """Makes the pool notice a dead child at once, and read everything that the child wrote before.

    The hub tells the pool when a child's pipe closes. The kernel closes it a moment before the child can be reaped: the
    pool looks once, sees a living process, and looks again only after five seconds.

    If two children die at almost the same time, the pool empties only the pipe of the one that it noticed first. The
    other one may have accepted a job, and the pool may not have read that yet: it would give the job to a third child,
    which would run it again under the same fence.
    """
    inner = pool._pool
    noticed = getattr(inner, "_event_process_exit", None)
    if noticed is None or hasattr(noticed, "watching"):
        return

    def look_again(hub: Any, process: Any, tries: int) -> None:
        if process in inner._pool and tries > 0:
            inner.maintain_pool()
            hub.call_later(0.01, look_again, hub, process, tries - 1)

    def event_process_exit(hub: Any, process: Any) -> None:
        noticed(hub, process)
        look_again(hub, process, 100)

    def on_partial_read(job: Any, process: Any) -> None:
        if not job._accepted and not process.dead:
            inner.process_flush_queues(process)
        partly_read(job, process)

    partly_read, inner.on_partial_read = inner.on_partial_read, on_partial_read
    event_process_exit.watching = True  # type: ignore[attr-defined]
    inner._event_process_exit = event_process_exit


def keep_partial_reads(pool: Any) -> None:
    """Keeps reading a child's message that was only partly read when the broker connection was lost.

    A child writes a long message (an error with its traceback, say) in several pieces. The pool reads it with a
    generator to which only the hub has a reference, and Celery resets the hub when the connection is lost. Without the
    generator, the pool would take the rest of the message for the length of the next one. It would never read a message
    of this child again, and the child's run would never end.
    """
    handler = getattr(pool._pool, "_result_handler", None)
    receive = getattr(handler, "_recv_message", None)
    if handler is None or receive is None or hasattr(receive, "keeping"):
        return
    #: By file number: the child whose message is read, and the generator that reads it.
    reading: dict[int, tuple[Any, Any]] = {}

    def recv_message(add_reader: Any, fd: int, callback: Any) -> Any:
        child = handler.fileno_to_outq[fd]
        its, reader = reading.get(fd, (None, None))
        if its is not child or inspect.getgeneratorstate(reader) != inspect.GEN_SUSPENDED:
            reader = receive(add_reader, fd, callback)
            reading[fd] = child, reader
        return reader

    recv_message.keeping = True  # type: ignore[attr-defined]
    handler._recv_message = recv_message
