"""Which of a sample's tokens a rank holds: pure arithmetic."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which of a sample's tokens a model holds: one of so many runs of one length, the last ones maybe shorter."""

    number: int = 0
    count: int = 1

    def length(self, tokens: int) -> int:
        """Tokens of the longest run, of so many."""
        return -(-tokens // self.count)

    def run(self, tokens: int) -> slice:
        """Its tokens, of so many."""
        length = self.length(tokens)
        return slice(min(tokens, length * self.number), min(tokens, length * (self.number + 1)))


WHOLE = Part()
"""All of a sample's tokens."""
