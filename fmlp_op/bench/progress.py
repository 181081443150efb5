"""Says how far a long command is: one line redrawn on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_BAR_WIDTH = 24
_SECONDS_BETWEEN_LOG_LINES = 5.0


class Progress:
    """`update` for every step, `close` at the end; writes to stderr, so that results can be piped on.

    Args:
        total: number of steps.
        label: what is being done.
        stream: where to, stderr by default.
    """

    def __init__(self, total: int, label: str, stream: TextIO | None = None) -> None:
        self._total, self._label = max(total, 1), label
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._last_line_at = -_SECONDS_BETWEEN_LOG_LINES
        self._start = time.monotonic()

    def update(self, done: int, detail: str = "") -> None:
        """Show that `done` steps are behind us; `detail` says what comes next or what came out."""
        now = time.monotonic()
        if self._is_terminal:
            filled = _BAR_WIDTH * done // self._total
            bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
            line = f"{self._label} {bar} {done}/{self._total}  {detail}"
            self._stream.write("\r\x1b[2K" + line)
            self._stream.flush()
        elif done >= self._total or now - self._last_line_at >= _SECONDS_BETWEEN_LOG_LINES:
            self._last_line_at = now
            print(
                f"{self._label} {done}/{self._total} ({now - self._start:.0f} s)  {detail}",
                file=self._stream,
                flush=True,
            )

    def close(self) -> None:
        """Leave the terminal's line, so that what is printed next starts on its own."""
        if self._is_terminal:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
