"""The parts that tests are built with. A test module imports from here, never from another test module.

Processes and servers:

- ``wait``: the one way to wait for a condition, with a deadline.
- ``processes``: a child process that can always be found, paused, killed and accounted for; ``guard`` kills the
  processes that a killed test run leaves behind.
- ``servers``: private Redis and RabbitMQ servers on loopback.
- ``proxy``: a proxy in front of Redis that loses the reply to a given request.
- ``workers``: stock ``celery`` processes, and the client side of an app in the test's own process.
- ``schedulers``: ``celery beat`` processes, and their fires.
- ``pools``: ``orchestration pools`` processes and the workers that they start.
- ``nodes``: the same processes as pytest-celery's nodes.
- ``strikes``, ``clocks``: a process that is killed or stopped at a given step; a wall clock that can be set.

Stages, each with everything that one kind of test needs:

- ``stage``: an app, its workers, the calls that were sent to them and their executions.
- ``shop``: Redis, a worker, a scheduler and dashboards, all of the app ``support.apps.shop``.
- ``ledger``: a ledger, and one method for each action of workers and operators on it.
- ``dispatching``: the same for schedulers.
- ``gates``: the gate of one worker, without a broker and without Redis.
- ``model``: a second, simple implementation of the ledger, with which the real one is compared; ``gate_model`` answers
  the questions of the gate's rules about it.

What tests check:

- ``history``: what the tasks did, and when, as they recorded it themselves.
- ``invariants``: what must hold after every test.
- ``verbs``: the ledger's verbs as commands that reach Redis.
- ``terminal``: a command in a terminal, as a person sees it.
- ``visitor``, ``browser``: the dashboard over HTTP, and in Chromium.
- ``hostile``: texts that break careless code.

``apps`` and ``projects`` are the Celery apps and projects that the workers load.
"""
