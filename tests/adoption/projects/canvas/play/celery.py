"""One set of tasks, as one of three kinds: plain, jobs with nothing written, jobs of which one runs at a time."""

import os

from celery import Celery

app = Celery("play", broker=os.environ["PLAY_REDIS"], backend=os.environ["PLAY_REDIS"], include=["play.tasks"])
app.conf.result_extended = True
