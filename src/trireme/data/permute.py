"""A seeded permutation of 0..n-1 that is computed where it is needed and never stored.

A Feistel network permutes the next power of two; a value that lands outside is sent through again until
it lands inside ("cycle walking"), which makes a permutation of exactly n. Looking up one place costs the
same wherever it is, so seeking in an epoch of a trillion samples is free and nothing has to be shared
between ranks.

Source: M. Luby, C. Rackoff, How to construct pseudorandom permutations, SIAM J. Comput. 17(2), 1988;
J. Black, P. Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002, section 3 (cycle walking);
G. Steele et al., Fast splittable pseudorandom number generators, OOPSLA 2014 (the 64-bit mixer).
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 8
_LEAST_BITS = 6  # halves of 3 bits or more: smaller ones leave too few round functions to look random
_MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def derive_key(*parts: int) -> int:
    """Return a 64-bit key that depends on each of ``parts`` and on their order."""
    key = 0
    for part in parts:
        key = _mix((key + _GOLDEN + (part & _MASK_64)) & _MASK_64)
        key = _mix((key ^ (part >> 64)) & _MASK_64)
    return key


def derive_keys(key: int, numbers: np.ndarray) -> np.ndarray:
    """Return a 64-bit key for each of ``numbers`` (epochs, say). Shapes: [N] -> [N] uint64."""
    return _mix_array(numbers.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key))


def permute(places: np.ndarray, *, size: int, keys: np.ndarray) -> np.ndarray:
    """Return where the permutation of ``0 .. size-1`` that each key picks sends each place.

    Shapes:
        places: [N] int64, each in 0..size-1. keys: [N] or [1] uint64. Returned: [N] int64.
    """
    bits = max(_LEAST_BITS, (size - 1).bit_length())
    keys = np.broadcast_to(keys, places.shape)
    values = _feistel(places.astype(np.uint64), bits=bits, keys=keys)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        again = _feistel(values[outside], bits=bits, keys=keys[outside])
        values[outside] = again
        outside = outside[again >= size]
    return values.astype(np.int64)


def _feistel(values: np.ndarray, *, bits: int, keys: np.ndarray) -> np.ndarray:
    """Permute ``bits``-bit numbers; the halves differ by a bit when ``bits`` is odd, so rounds alternate."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for number in range(_ROUNDS):
        round_keys = keys + np.uint64((number * _GOLDEN) & _MASK_64)
        if number % 2:
            low ^= _mix_array(round_keys ^ high) & low_mask
        else:
            high ^= _mix_array(round_keys ^ low) & high_mask
    return (high << low_bits) | low


def _mix(value: int) -> int:
    for shift, factor in zip(_SHIFTS[:2], _FACTORS, strict=True):
        value = ((value ^ (value >> shift)) * factor) & _MASK_64
    return value ^ (value >> _SHIFTS[2])


def _mix_array(values: np.ndarray) -> np.ndarray:
    """Do ``_mix`` in place on uint64, which wraps as it should."""
    for shift, factor in zip(_SHIFTS[:2], _FACTORS, strict=True):
        values ^= values >> np.uint64(shift)
        values *= np.uint64(factor)
    values ^= values >> np.uint64(_SHIFTS[2])
    return values
