"""Which jobs depend on which, and which never run together."""
