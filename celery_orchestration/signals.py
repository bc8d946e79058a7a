"""Signals that an app can connect to. They are sent in the worker's main process.

``job_disabled``: a job was disabled because its runs kept failing. ``sender`` is the job's name, ``why`` a sentence.
"""

from celery.utils.dispatch import Signal

job_disabled = Signal(name="job_disabled", providing_args={"why"})
