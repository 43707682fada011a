"""Hyperslab: pretrain space-time foundation models, from raw files to a browsable experiment with one command."""

# The wheel of eccodes brings a SQLite 3.26 whose symbols hide those of any SQLite that is loaded after it. xarray loads
# eccodes where cfgrib is installed, and MLflow needs a newer SQLite: so Python's own comes first.
import sqlite3  # noqa: F401

__version__ = "0.1.0"
