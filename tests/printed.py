"""What a command printed."""


def the_only_line(text: str) -> str:
    """Of a text that must have one line."""
    (line,) = text.splitlines()
    return line
