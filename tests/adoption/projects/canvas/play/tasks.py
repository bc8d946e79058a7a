"""Small tasks. Each execution is counted, and ``echo`` records its arguments, in a database of Redis of its own."""

import os
import time

import redis
from celery import Task, chord, group
from celery.exceptions import Ignore, Reject
from celery.signals import task_prerun

from celery_orchestration import OrchestratedTask

from .celery import app

store = redis.Redis.from_url(os.environ["PLAY_STORE"], decode_responses=True)

OPTIONS = {
    "plain": {"base": Task},
    "inherits": {"base": OrchestratedTask},
    "exclusive": {"base": OrchestratedTask, "max_running": 1},
}[os.environ["PLAY_KIND"]]


def task(**own):
    return app.task(**{**OPTIONS, "bind": True, **own})


@task_prerun.connect
def count(task, **_):
    store.hincrby("executions", task.name, 1)


@task()
def add(self, x, y=0):
    return x + y


@task()
def gather(self, found):
    return found


@task()
def identity(self, value):
    return value


@task()
def fail(self, *args):
    raise ValueError("as asked")


@task()
def echo(self, *values):
    store.rpush("echoes", " ".join(map(str, values)))
    return values[-1] if values else None


@task()
def slow_echo(self, value):
    echo.run(value)
    time.sleep(0.5)
    return value


@task(max_retries=3)
def retry_until(self, times, value=0):
    """Succeeds at its attempt number ``times``."""
    if self.request.retries < times:
        raise self.retry(exc=KeyError("not yet"), countdown=0.2)
    return [self.request.retries, value]


@task(autoretry_for=(KeyError,), max_retries=2, default_retry_delay=0.2)
def give_up(self):
    raise KeyError("never")


@task()
def replace_with_chain(self, value):
    raise self.replace(add.s(value, 1) | add.s(10))


@task()
def replace_with_chord(self, value):
    raise self.replace(chord([add.s(value, n) for n in range(3)], gather.s()))


@task()
def replace_with_group(self, value):
    raise self.replace(group(add.s(value, n) for n in range(3)))


@task()
def replace_with_itself(self, depth):
    """As in Celery's own test suite: a replacement that is replaced."""
    if depth > 0:
        raise self.replace(replace_with_itself.s(depth - 1))
    return "replaced"


@task()
def resend(self, left):
    """Sends itself again under its own id, as people do to poll something."""
    echo.run("resend", left)
    if left:
        self.apply_async((left - 1,), task_id=self.request.id)
    return left


@task()
def send_with_id(self, task_id, value):
    """Sends another task under an id that follows from its data."""
    echo.apply_async((value,), task_id=task_id)


@task()
def ignored(self):
    echo.run("ignored")
    raise Ignore


@task()
def rejected(self):
    echo.run("rejected")
    raise Reject("as asked", requeue=False)


@task()
def about(self, *args):
    """The place of a task in a canvas, as the task itself sees it."""
    request = self.request
    return {
        "retries": request.retries,
        "is_root": request.root_id == request.id,
        "has_parent": request.parent_id is not None,
        "in_group": request.group is not None,
        "has_chord": bool(request.chord),
        "is_eager": request.is_eager,
        "headers": (request.headers or {}).get("tenant"),
        "stamps": sorted(request.stamps or {}),
        "called_directly": request.called_directly,
        "queue": (request.delivery_info or {}).get("routing_key"),
        "args": request.argsrepr,
        "shadow": request.shadow,
        "ignore_result": bool(request.ignore_result),
    }


# Celery reads an errback's signature to decide how to call it; a bound task gets none of the new-style arguments.
@task(bind=False)
def errback(request, exc, traceback):
    echo.run("errback", type(exc).__name__)


@task(bind=False)
def old_errback(failed_id):
    echo.run("old errback", bool(failed_id))
