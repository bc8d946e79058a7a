"""One set of tasks in one of three kinds: plain, jobs without written options, jobs with max_running=1."""

import os

from celery import Celery

app = Celery("play", broker=os.environ["PLAY_REDIS"], backend=os.environ["PLAY_REDIS"], include=["play.tasks"])
app.conf.result_extended = True
