"""A limit on how fast bytes come in, shared by all downloads."""

import threading
import time


class Rate:
    """A bucket of tokens: a second's worth at most, refilled as time goes by, one token a byte."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._per_second = bytes_per_second
        self._tokens = bytes_per_second or 0.0
        self._filled = time.monotonic()
        self._lock = threading.Lock()

    @property
    def block_bytes(self) -> int:
        """A good number of bytes to read at a time: a tenth of a second's, up to a mebibyte."""
        return 1 << 20 if self._per_second is None else int(min(1 << 20, max(1 << 10, self._per_second / 10)))

    def take(self, count: int) -> None:
        """Wait until so many bytes are allowed."""
        if self._per_second is None:
            return
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._per_second, self._tokens + (now - self._filled) * self._per_second)
            self._filled = now
            self._tokens -= count
            # Taken before they are there: whoever comes next waits for these too, so that the order is fair.
            debt = -self._tokens
        if debt > 0:
            time.sleep(debt / self._per_second)
