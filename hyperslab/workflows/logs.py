"""What libraries log while a campaign is driven."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path


class _QuietFile(logging.FileHandler):
    """A log file that is silent about its own trouble: of a full disk the campaign itself tells."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing."""


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Keep what libraries log, tracebacks too, in a file; only Hyperslab's own warnings reach the terminal."""
    root = logging.getLogger()
    screen, handler = list(root.handlers), _QuietFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    own = logging.Filter("hyperslab")
    root.addHandler(handler)
    for other in screen:
        other.addFilter(own)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):  # a full disk must not hide the error itself
            handler.close()
        for other in screen:
            other.removeFilter(own)
