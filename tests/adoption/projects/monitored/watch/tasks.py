import time

from celery.schedules import crontab

from celery_orchestration import OrchestratedTask

from .celery import app


@app.task(base=OrchestratedTask, max_running=1)
def work(seconds=0.0):
    time.sleep(seconds)


@app.task(base=OrchestratedTask, blocks=[work])
def sweep_up():
    pass


@app.task(base=OrchestratedTask)
def delayed():
    pass


@app.task
def plain():
    pass


@app.task(base=OrchestratedTask)
def fail():
    raise ValueError("a job failed")


@app.task(base=OrchestratedTask, interval_seconds=1)
def tock():
    pass


@app.task
def plain_tick():
    pass


@app.task(base=OrchestratedTask, schedule=crontab())
def tick():
    pass


@app.task(base=OrchestratedTask, schedule=crontab(), max_retries=0)
def broken_tick():
    raise ValueError("a scheduled job failed")


@app.task
def broken_plain_tick():
    raise ValueError("a scheduled task failed")
