"""Bytes of small weight files."""

import json
import math
import struct


def safetensors_bytes(tensors):
    """A safetensors file of float32 zeros: `tensors` maps names to shapes."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(offset)
