"""What a campaign says about lartpc files."""

from hyperslab.settings import Settings


class LartpcSettings(Settings):
    """Choices that only lartpc files need."""
