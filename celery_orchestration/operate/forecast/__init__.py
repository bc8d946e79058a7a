"""When jobs will run, what will wait for what, and what cannot end in time."""
