"""An image service with 200,000 jobs a day: thumbnails, PDFs, mail, webhooks and exports, each kind on its own pool.

    celery -A examples.image_service orchestration up
    python -m examples.image_service.load --jobs 50000

The first command starts everything on this machine. The second, in another terminal, sends jobs and shows how they are
worked off. ``app.py`` has the table of pools, ``jobs.py`` the work, ``world.py`` the mail server and the web server
that the jobs talk to.
"""

from examples.image_service.app import app

__all__ = ["app"]
