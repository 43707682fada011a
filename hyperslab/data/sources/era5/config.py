"""What a campaign says about era5 files."""

from hyperslab.settings import Settings


class Era5Settings(Settings):
    """Choices that only era5 files need."""
