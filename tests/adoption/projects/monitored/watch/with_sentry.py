"""As Sentry's page on Celery says: in handlers of Celery's signals."""

import os

import sentry_sdk
from celery.signals import beat_init, celeryd_init
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from .record import write


class ToFile(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            if item.payload.json is not None:
                write(item=item.headers["type"], **item.payload.json)


@celeryd_init.connect
@beat_init.connect
def init_sentry(**_):
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:1/1",
        transport=ToFile,
        traces_sample_rate=1.0,
        integrations=[CeleryIntegration(monitor_beat_tasks=True)],
    )


if os.environ.get("WATCH_CLIENT"):
    init_sentry()
