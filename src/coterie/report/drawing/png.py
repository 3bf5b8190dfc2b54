"""Small pictures as part of a page."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def embed_png(pixels: NDArray[Any]) -> str:
    """Return a picture as the address of itself, for `src` of an image.

    Args:
        pixels: in 0 … 255 `[height, width, channels]`, of one channel (grey) or three (red, green, blue).
    """
    values = np.asarray(pixels, np.uint8)
    height, width, channels = values.shape
    # Each row begins with its filter, here none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), values.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts
    )
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
