"""The Celery apps that the tests' workers load: ``celery -A support.apps.plain worker``."""
