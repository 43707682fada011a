"""Pretrain space-time foundation models on supercomputers."""

__version__ = "0.1.0"
