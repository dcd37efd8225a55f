"""Image decoding and preprocessing, from a file's bytes to an encoder's inputs; Pillow and NumPy.

Everything here runs on the host and holds no state. `decoding` is for the sandbox, and Pillow is
imported when an image comes. Images are RGB arrays (height, width, 3) of bytes; the inputs of
encoders are floats, cut into patches.
"""

from tampu.vision.limits import ImageLimits
from tampu.vision.pixels import (
    CLIP,
    HALF,
    IMAGENET,
    UNIT,
    Filter,
    Normalization,
    patches,
    places,
    resize,
    resize_floats,
)
from tampu.vision.sizes import (
    fit_area,
    fit_crop,
    fit_long_side,
    fit_patches,
    fit_pixels,
    fit_squares,
    fit_video,
    fit_whole,
    to_long_side,
    to_tiles,
)
from tampu.vision.slices import fit_slice, fit_slices, slice_grid
from tampu.vision.tiles import (
    Arrangement,
    arrange,
    arrange_by_shape,
    arrangements,
    cut_tiles,
    on_square,
    paste,
    tile_grid,
)

__all__ = [
    "CLIP",
    "HALF",
    "IMAGENET",
    "UNIT",
    "Arrangement",
    "Filter",
    "ImageLimits",
    "Normalization",
    "arrange",
    "arrange_by_shape",
    "arrangements",
    "cut_tiles",
    "fit_area",
    "fit_crop",
    "fit_long_side",
    "fit_patches",
    "fit_pixels",
    "fit_slice",
    "fit_slices",
    "fit_squares",
    "fit_video",
    "fit_whole",
    "on_square",
    "paste",
    "patches",
    "places",
    "resize",
    "resize_floats",
    "slice_grid",
    "tile_grid",
    "to_long_side",
    "to_tiles",
]
