"""Numbers as people read them. SI inside the program; GiB, ms and the like only here."""

from __future__ import annotations

_GIB = 1024**3
_MIB = 1024**2
_KIB = 1024


def format_count(value: float) -> str:
    """``1234567`` -> ``1.23M``; counts of things (parameters, tokens, FLOPs)."""
    for size, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.4g}"


def format_flops(value: float) -> str:
    """``2.5e12`` -> ``2.5 TFLOP``."""
    for size, suffix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {suffix}FLOP"
    return f"{value:.3g} FLOP"


def format_bytes(value_bytes: float) -> str:
    """``3221225472`` -> ``3.00 GiB``."""
    for size, suffix in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if abs(value_bytes) >= size:
            return f"{value_bytes / size:.2f} {suffix}"
    return f"{value_bytes:.0f} B"


def format_duration(value_s: float) -> str:
    """``3725`` -> ``1h02m05s``; under a minute with one decimal."""
    if value_s < 60:
        return f"{value_s:.1f}s"
    minutes, seconds = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        days, hours = divmod(hours, 24)
        return f"{days}d{hours:02d}h{minutes:02d}m"
    return f"{hours}h{minutes:02d}m{seconds:02d}s" if hours else f"{minutes}m{seconds:02d}s"
