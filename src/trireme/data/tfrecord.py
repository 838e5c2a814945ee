"""TFRecord files of ``tf.train.Example`` without TensorFlow.

A frame is: length (uint64), masked crc32c of the length, the data, masked crc32c of the data, little-endian.

Source: tensorflow/core/lib/io/record_writer.h (frame and mask), core/example/example.proto and feature.proto
(messages), protobuf.dev "Encoding" (wire format), 2024.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trireme.data.crc32c import crc32c_short, crc32c_spans

_HEAD = struct.Struct("<QI")
_FRAME_EXTRA_BYTES = 16
_MASK_DELTA = 0xA282EAD8


class FrameError(Exception):
    """The frame ``record`` (from 0) at byte ``offset`` of the buffer is damaged."""

    def __init__(self, record: int, offset: int) -> None:
        super().__init__(f"record {record} at byte {offset}")
        self.record = record
        self.offset = offset


class WireError(ValueError):
    """The bytes are no ``tf.train.Example``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The data of one frame; ``whole`` says whether its checksum holds."""

    data: bytes
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """How many frames, and how long they are together."""

    number: int
    size_bytes: int


def whole_frames(buffer: bytes | bytearray, *, enough_bytes: int) -> Frames:
    """Return the whole frames at the start of ``buffer``, until they make ``enough_bytes``.

    Raises:
        FrameError: The checksum of a length doesn't hold.
    """
    place = found = 0
    while place + _HEAD.size <= len(buffer) and place < enough_bytes:
        length, checksum = _HEAD.unpack_from(buffer, place)
        if _masked(crc32c_short(buffer[place : place + 8])) != checksum:
            raise FrameError(found, place)
        if place + length + _FRAME_EXTRA_BYTES > len(buffer):
            break
        place += length + _FRAME_EXTRA_BYTES
        found += 1
    return Frames(number=found, size_bytes=place)


def read_frames(buffer: bytes) -> Iterator[Frame]:
    """Yield the frames of a buffer that holds whole ones, each checked against its checksum."""
    starts, lengths, place = [], [], 0
    while place < len(buffer):
        (length,) = struct.unpack_from("<Q", buffer, place)
        starts.append(place + _HEAD.size)
        lengths.append(length)
        place += length + _FRAME_EXTRA_BYTES
    sums = crc32c_spans(np.frombuffer(buffer, np.uint8), starts=np.array(starts), lengths=np.array(lengths))
    for start, length, found in zip(starts, lengths, sums.tolist(), strict=True):
        (noted,) = struct.unpack_from("<I", buffer, start + length)
        yield Frame(data=buffer[start : start + length], whole=_masked(found) == noted)


def _masked(crc: int) -> int:
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    return (rotated + _MASK_DELTA) & 0xFFFFFFFF


def parse_example(data: bytes) -> dict[str, list[bytes] | list[float] | list[int]]:
    """Return the features of a ``tf.train.Example``.

    Raises:
        WireError: ``data`` is not one.
    """
    features: dict[str, list[bytes] | list[float] | list[int]] = {}
    for entry in _messages(data, 1):  # Example.features
        for pair in _messages(entry, 1):  # Features.feature: a map is a list of (key, value) messages
            name = b"".join(_messages(pair, 1)[-1:])
            try:
                features[name.decode()] = _feature(b"".join(_messages(pair, 2)))
            except UnicodeDecodeError as error:
                raise WireError("a feature's name is no UTF-8") from error
    if not features:
        raise WireError("no features")
    return features


def _feature(data: bytes) -> list[bytes] | list[float] | list[int]:
    for number, wire, value in _fields(data):
        if wire != 2 or not isinstance(value, bytes):
            raise WireError(f"feature of wire type {wire}")
        if number == 1:
            return _messages(value, 1)
        if number == 2:
            return _floats(value)
        if number == 3:
            return _integers(value)
    return []


def _floats(data: bytes) -> list[float]:
    raw = b"".join(v if isinstance(v, bytes) else b"" for _, wire, v in _fields(data) if wire in (2, 5))
    return [float(x) for x in np.frombuffer(raw[: len(raw) // 4 * 4], "<f4")]


def _integers(data: bytes) -> list[int]:
    values: list[int] = []
    for _, _, value in _fields(data):
        if isinstance(value, int):
            values.append(value)
        else:
            place = 0
            while place < len(value):
                number, place = _varint(value, place)
                values.append(number)
    return [v - (1 << 64) if v >> 63 else v for v in values]


def _messages(data: bytes, number: int) -> list[bytes]:
    return [value for n, _, value in _fields(data) if n == number and isinstance(value, bytes)]


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Yield (field number, wire type, value) of one message."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        wire = tag & 7
        if wire == 0:
            number, place = _varint(data, place)
            yield tag >> 3, wire, number
            continue
        if wire == 2:
            length, place = _varint(data, place)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise WireError(f"wire type {wire}")
        if place + length > len(data):
            raise WireError("a field ends beyond the record")
        yield tag >> 3, wire, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
        shift += 7
    raise WireError("a number doesn't end")
