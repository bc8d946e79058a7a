"""What the tests are built with: real servers, real worker processes, and waits with a deadline.

In the order in which a test meets them:

- ``wait``: the one way to wait for something.
- ``processes``: a child process that can always be found, paused, killed and accounted for.
- ``servers``: private Redis and RabbitMQ servers on loopback.
- ``proxy``: a proxy before Redis that loses replies.
- ``workers``: stock ``celery`` processes, and the client side of an app in the test's own process.
- ``schedulers``: ``celery beat`` processes, and what they fired.
- ``strikes``, ``clocks``: a process that is killed or stopped at a given step; a wall clock that can be set.
- ``history``: what the tasks did, and when, as they recorded it themselves.
- ``nodes``: the same processes as pytest-celery's nodes.
- ``apps``: the Celery apps that the workers load.
"""
