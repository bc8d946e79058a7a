import time

from celery_orchestration import OrchestratedTask

from .celery import app


@app.task
def add(x, y):
    return x + y


@app.task(base=OrchestratedTask)
def mul(x, y):
    return x * y


@app.task(base=OrchestratedTask, interval_seconds=1)
def fetch():
    return "data"


@app.task(base=OrchestratedTask, max_running=1)
def xsum(numbers, seconds=0.0):
    time.sleep(seconds)
    return sum(numbers)


@app.task(base=OrchestratedTask, priority="low", pool="nightly")
def archive(): ...


@app.task(base=OrchestratedTask, priority="high")
def urgent():
    return "at once"


@app.task(base=OrchestratedTask, max_running=1)
def hold(seconds):
    """Other runs of it wait meanwhile."""
    time.sleep(seconds)
    return seconds
