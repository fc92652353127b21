"""Files with a fault at a known place."""

import json
import struct


def flip_byte_of_tensor(path, name, position=0):
    """Flip one bit inside a tensor of a safetensors file."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    start = json.loads(content[8 : 8 + length])[name]["data_offsets"][0]
    content[8 + length + start + position] ^= 1
    path.write_bytes(content)
