import click


@click.group()
def orchestration() -> None:
    """Jobs that wait for each other."""
