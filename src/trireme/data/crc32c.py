"""CRC-32C of many spans of a buffer at once, in numpy.

The register after a message is linear in the message, so spans are cut into short pieces that all advance
together, one table look-up a byte, and the pieces are joined in pairs by "append n zero bytes" operators.

Source: RFC 3720, appendix B.4 (polynomial 0x1EDC6F41, reflected 0x82F63B78; start and final xor of ones).
"""

from __future__ import annotations

from functools import cache

import numpy as np

_POLYNOMIAL = 0x82F63B78
_PIECE_BYTES = 32
_BATCH_BYTES = 1 << 20
_ONES = 0xFFFFFFFF


@cache
def _byte_table() -> np.ndarray:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(_POLYNOMIAL), crc >> 1).astype(np.uint32)
    return crc


@cache
def _byte_list() -> list[int]:
    return [int(x) for x in _byte_table()]


def crc32c_short(data: bytes | bytearray) -> int:
    """Return the CRC-32C of a few bytes."""
    table, crc = _byte_list(), _ONES
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ _ONES


def crc32c_spans(buffer: np.ndarray, *, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the CRC-32C of ``buffer[start : start + length]`` for each span.

    Shapes:
        buffer: uint8 vector; starts, lengths: integers [n]; returns uint32 [n].
    """
    sums = np.empty(len(starts), np.uint32)
    ends = np.searchsorted(np.cumsum(lengths) // _BATCH_BYTES, np.arange(lengths.sum() // _BATCH_BYTES + 1), "right")
    first = 0
    for end in ends.tolist():
        if end > first:
            sums[first:end] = _batch(buffer, starts[first:end], lengths[first:end])
            first = end
    return sums


def _batch(buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    counts = np.maximum(-(-lengths // _PIECE_BYTES), 1)
    rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # 0 is a span's last piece
    begins = np.repeat(starts + lengths, counts) - (rank + 1) * _PIECE_BYTES
    joined = _join(_pieces(buffer, begins, np.repeat(starts, counts)), counts, rank)
    start = _append_zeros(np.full(len(starts), _ONES, np.uint32), lengths)
    return np.asarray(joined ^ start ^ np.uint32(_ONES))


def _pieces(buffer: np.ndarray, begins: np.ndarray, lows: np.ndarray) -> np.ndarray:
    """Return the register of each piece from zero; bytes before its span count as zeros, which change nothing."""
    table = _byte_table()
    crc = np.zeros(len(begins), np.uint32)
    for step in range(_PIECE_BYTES):
        place = begins + step
        byte = np.where(place >= lows, buffer[np.maximum(place, lows).clip(max=len(buffer) - 1)], 0)
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> np.uint32(8))
    return crc


def _join(crc: np.ndarray, counts: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Join the pieces of each span in pairs, from its end, until one is left."""
    level = _PIECE_BYTES.bit_length() - 1
    while counts.max(initial=1) > 1:
        odd = rank % 2 == 1
        counts = (counts + 1) // 2
        bases = np.repeat(np.cumsum(counts) - counts, counts)
        joined = crc[~odd]
        target = np.cumsum(~odd)[odd] - 1  # the even piece that stands just before: the right one of the pair
        joined[target] ^= _apply(_operator(level), crc[odd])
        crc, rank, level = joined, np.arange(counts.sum()) - bases, level + 1
    return crc


def _append_zeros(crc: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    for level in range(int(lengths.max(initial=0)).bit_length()):
        crc = np.where((lengths >> level) & 1, _apply(_operator(level), crc), crc)
    return crc


def _apply(operator: np.ndarray, crc: np.ndarray) -> np.ndarray:
    a, b, c, d = operator
    low = a[crc & 0xFF] ^ b[(crc >> np.uint32(8)) & 0xFF]
    return np.asarray(low ^ c[(crc >> np.uint32(16)) & 0xFF] ^ d[crc >> np.uint32(24)])


@cache
def _operator(level: int) -> np.ndarray:
    """Return the tables [4, 256] that append ``2**level`` zero bytes to a register."""
    basis = np.arange(256, dtype=np.uint32)[None, :] << np.array([0, 8, 16, 24], np.uint32)[:, None]
    if level == 0:
        return np.asarray(_byte_table()[basis & 0xFF] ^ (basis >> np.uint32(8)))
    half = _operator(level - 1)
    return _apply(half, _apply(half, basis))
