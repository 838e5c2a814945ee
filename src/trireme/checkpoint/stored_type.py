"""How each torch dtype lies in a shard file, which is a safetensors file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredType:
    """A dtype in a shard.

    Attributes:
        dtype: torch's name without ``torch.``.
        code: The safetensors code of one stored number.
        item_bytes: Bytes of one element of the torch dtype.
        inner: Dimensions that one element adds to the stored shape (real and imaginary part).
    """

    dtype: str
    code: str
    item_bytes: int
    inner: tuple[int, ...] = ()


_TABLE = (
    StoredType("bool", "BOOL", 1),
    StoredType("uint8", "U8", 1),
    StoredType("int8", "I8", 1),
    StoredType("uint16", "U16", 2),
    StoredType("int16", "I16", 2),
    StoredType("uint32", "U32", 4),
    StoredType("int32", "I32", 4),
    StoredType("uint64", "U64", 8),
    StoredType("int64", "I64", 8),
    StoredType("float8_e4m3fn", "F8_E4M3", 1),
    StoredType("float8_e5m2", "F8_E5M2", 1),
    StoredType("float8_e4m3fnuz", "F8_E4M3FNUZ", 1),
    StoredType("float8_e5m2fnuz", "F8_E5M2FNUZ", 1),
    StoredType("float8_e8m0fnu", "F8_E8M0", 1),
    StoredType("float16", "F16", 2),
    StoredType("bfloat16", "BF16", 2),
    StoredType("float32", "F32", 4),
    StoredType("float64", "F64", 8),
    StoredType("complex64", "C64", 8),
    # safetensors has no code for these; other tools see the numbers they are made of.
    StoredType("complex32", "F16", 4, (2,)),
    StoredType("complex128", "F64", 16, (2,)),
    StoredType("float4_e2m1fn_x2", "U8", 1),
)

STORED_TYPES = {each.dtype: each for each in _TABLE}
"""By torch's dtype name; a dtype that is absent can't be saved."""
