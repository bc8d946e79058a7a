"""Every use of internals of Celery, kombu, billiard and py-amqp, with the reason.

- ``pool``: execution pools.
- ``consumer``: Celery's worker and its consumer.
- ``control``: commands of remote control.
- ``redis``: kombu's Redis transport. ``amqp``: RabbitMQ's prefetch count.
- ``verify``: :func:`verify` checks all of them when a worker starts. If one is not as expected the worker refuses to
  start, because a gate that is bypassed silently is worse than none.
"""

from celery_orchestration.worker.internals import amqp, consumer, control, pool, redis
from celery_orchestration.worker.internals.verify import verify

__all__ = ["amqp", "consumer", "control", "pool", "redis", "verify"]
