"""Texts with a meaning in a key, a pattern, a terminal, a log, a page or a template."""

TEXTS = {
    "colon": "a:b",
    "another colon": "b:a",
    "no colon": "a",
    "braces": "{a}:{b}",
    "pattern": "a*?[b]",
    "nul": "a\x00b",
    "newline": "a\r\nError: b",
    "right to left": "\u202egnol\u2066",
    "script": "<script>alert('x')</script>",
    "ansi": "\x1b[2J\x1b[31mred\x9b0m\x07",
    "percent": "a%3Ab",
    "markup": "[bold]x[/bold]",
    "blank": " ",
    "format": "{0.__class__} %s",
}
