"""What a campaign says about fmri files."""

from hyperslab.settings import Settings


class FmriSettings(Settings):
    """Choices that only fmri files need."""
