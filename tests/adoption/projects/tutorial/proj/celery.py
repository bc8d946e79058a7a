"""The layout of Celery's tutorial: tasks in a module of their own, named by ``include``."""

import os

from celery import Celery

app = Celery("proj", broker=os.environ["PROJ_REDIS"], backend=os.environ["PROJ_REDIS"], include=["proj.tasks"])
app.conf.update(result_expires=3600, beat_scheduler="celery_orchestration:OrchestratedScheduler")

if __name__ == "__main__":
    app.start()
