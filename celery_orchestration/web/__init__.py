"""The dashboard: what is wrong, why, and what to press, in a browser.

It answers from the ledger, through :class:`celery_orchestration.operate.Orchestration`, and keeps nothing itself.
Needs the extra ``[dashboard]``.

``app.py`` makes the ASGI app, to be served alone (``server.py``) or mounted in another one. A request passes
``security.py`` and ``auth.py``, then a page: ``pages/`` has one module each, which makes plain values of what the
ledger tells, and ``templates/`` shows them; ``svg/`` draws. ``live.py`` looks at the ledger once a second while
somebody watches, and sends each browser what has changed on its page. ``actions.py`` has what people can press.
"""
