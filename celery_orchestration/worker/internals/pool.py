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
    """How many processes, threads or greenlets an execution pool has by now; None before it has started."""
    try:
        size = getattr(pool, "num_processes", None)
    except TypeError:
        return None  # before Celery 5.6 that of gevent has nothing to count yet
    return size if isinstance(size, int) else None


def can_kill(pool: Any) -> bool:
    """Whether code in this pool, or a pool of this class, has processes of its own."""
    return isinstance(pool, PreforkPool) or (isinstance(pool, type) and issubclass(pool, PreforkPool))


def children(pool: Any) -> list[Any]:
    """The processes of a prefork pool; none of another pool, or of one that is down."""
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
    """Threads that have not begun a run will not: before Celery 5.7 the pool begins all it has while it stops. (Prefork
    gives back what it has not begun when the consumer is closed, see guard_flush.)"""
    if hasattr(result, "f"):
        result.f.cancel()


def is_over(result: Any) -> bool:
    """Whether the code is gone whose result apply_async of threads or gevent returned. Results of other pools do not
    outlive them."""
    if hasattr(result, "f"):
        return bool(result.f.done())
    return bool(result.ready()) if hasattr(result, "link") else True


def is_with_pool(request: Any) -> bool:
    """Whether an execution pool has it or had it: not if it only waited for a slot, or the pool forgot it."""
    result = request._apply_result() if callable(request._apply_result) else request._apply_result
    if result is None:
        return request.time_start is not None
    cache = getattr(result, "_cache", None)
    return cache is None or result._job in cache or bool(result.ready())


def take_free_slot(semaphore: LaxBoundedSemaphore) -> bool:
    """Takes a slot of the worker's semaphore, if one is free right now; never queues for one. Prefork gives
    execute_using_pool such a slot, and takes it back itself."""
    if semaphore.value <= 0:
        return False
    semaphore.acquire(_nothing)
    return True


def _nothing() -> None:
    pass


def before_begin(controller: Any, may_begin: Callable[[Any], bool]) -> None:
    """A request that waited for a slot is dropped if `may_begin(request)` is False. Prefork only: the other pools get
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
    """`ended()` is called, in any thread, when code in the pool has ended. Threads and gevent only: prefork tells the
    event loop by itself. To be called before the first request class is made, which keeps `apply_async`."""
    apply_async = pool.apply_async
    if hasattr(apply_async, "ended"):
        apply_async.ended = ended
        return

    def apply_and_tell(*args: Any, **kwargs: Any) -> Any:
        result = apply_async(*args, **kwargs)
        if hasattr(result, "f"):
            result.f.add_done_callback(lambda _: apply_and_tell.ended())  # type: ignore[attr-defined]
        elif hasattr(result, "link"):
            result.link(lambda _: apply_and_tell.ended())  # type: ignore[attr-defined]
        return result

    apply_and_tell.ended = ended  # type: ignore[attr-defined]
    if not can_kill(pool):
        pool.apply_async = apply_and_tell


def guard_flush(pool: Any, ours: Callable[[], Iterable[Any]], lost: Callable[[list[Any]], None]) -> None:
    """Keeps runs from vanishing when the broker connection is lost.

    Consumer.on_close calls pool.flush(), which forgets every job that no child has accepted yet (before Celery 5.7 also
    those that run), without a callback: Celery counts on the broker to deliver it again. But some of them were written
    to a child already and will run there, unnoticed. So after flush, the pool knows again the jobs that a child has or
    is getting, and `lost` gets those that never left the main process. The same for plain tasks when the worker stops:
    a message that a child has must not go back, and the pool must not wait for its end in vain.

    `ours` gives the requests of runs that were handed to the pool.
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
    """A dead child is noticed at once, and everything that it wrote before is read.

    The hub tells the pool when a child's pipe closes, which the kernel does a moment before the child can be
    reaped; the pool looks once, sees a living process, and looks again only after five seconds.

    Of two children that die within a moment the pool empties the pipe of the one it noticed first. That the other one
    had accepted its job may still be unread: the job would be given to a third, and run again under the same fence.
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
    """A message of a child that was read in part when the broker connection was lost is read on.

    A child writes a long message (an error with its traceback, say) in several pieces, and the pool reads it with a
    generator that only the hub knows. Celery resets the hub when the connection is lost. Without the generator, the
    pool would take the rest of the message for the length of another one: it would never hear of this child again, and
    the child's run would never end.
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
