"""Models as tables and text for the terminal."""
