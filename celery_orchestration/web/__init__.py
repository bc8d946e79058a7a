"""The dashboard: it shows in a browser what is wrong, why, and how to fix it.

It reads the ledger through :class:`celery_orchestration.operate.Orchestration`, and keeps no state of its own. It needs
the extra ``[dashboard]``.

``app.py`` makes the ASGI app, which is served alone (``server.py``) or mounted in another one. A request passes
``security.py`` and ``access.py`` (``login.py``, ``auth.py``), then a page: each module of ``pages/`` turns the ledger's
data into plain values, ``templates/`` shows them with ``formatting.py``, and ``svg/`` draws. ``live.py`` reads the
ledger once a second while browsers watch, and sends them the changed parts of their pages. ``actions.py`` has the
buttons.
"""
