"""What a rank says when another one is lost: where it stood, and what it waited in."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

_GLOO = "gloo/transport/"
"""Part of the path that gloo's errors begin with; torch raises them as bare RuntimeErrors (2.13)."""
_TIMED_OUT = re.compile(r"Timed out waiting \d+ms|^Wait timeout$")
"""Of a collective, and of the file by which ranks find one another."""


class RankLost(RuntimeError):
    """Another rank has ended, or has kept this one waiting for too long; the message is one line."""


@dataclass(slots=True, kw_only=True)
class Place:
    """Where a rank is in its work."""

    rank: int
    step: int | None = None
    """The training step that it is in; None outside of training."""
    doing: str
    """What it may wait in for the others, such as `validation`."""

    def at(self, step: int, doing: str) -> None:
        """Note where the rank has come to."""
        self.step, self.doing = step, doing

    def __str__(self) -> str:
        return f"rank {self.rank}: " + ("" if self.step is None else f"step {self.step}, ") + self.doing


@contextlib.contextmanager
def naming(place: Place) -> Iterator[None]:
    """Have a collective that fails inside say where.

    Raises
    ------
    RankLost
        When another rank has ended, or does not answer within the time-out of the process group.
    """
    try:
        yield
    except RuntimeError as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise RankLost(f"{place}: {reason}") from error


def _reason(error: RuntimeError) -> str | None:
    """What a collective says of the other ranks; None where the error is of another kind."""
    text = str(error)
    if _TIMED_OUT.search(text):
        return "another rank did not answer in time (timeout_seconds of the site); it hangs, or waits for one that does"
    if _GLOO in text:
        return "another rank has ended"
    return text.splitlines()[0] if isinstance(error, dist.DistError) else None
