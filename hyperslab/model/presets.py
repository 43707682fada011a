"""Known sizes of the model, from one that trains on a laptop to one for a large machine."""

PRESETS = {
    "tiny": {"width": 192, "depth": 4, "heads": 6},
    "small": {"width": 512, "depth": 8, "heads": 8},
    "base": {"width": 1024, "depth": 12, "heads": 16},
    "large": {"width": 1536, "depth": 24, "heads": 24},
    "xl": {"width": 2560, "depth": 36, "heads": 40},
    "10b": {"width": 4608, "depth": 40, "heads": 72},
}
"""Width, depth and heads by name. The blocks hold about 12 x width^2 x depth parameters: 2 M, 25 M, 150 M, 680 M,
2.8 B and 10.2 B."""
