"""Trireme trains large models: plain PyTorch in, any parallel layout out."""

__version__ = "0.1.0"
