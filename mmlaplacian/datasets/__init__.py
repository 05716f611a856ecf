"""Datasets generated from data in installed packages."""

#: Suffixes of image files, in lower case.
IMAGE_SUFFIXES = [
    '.bmp',
    '.jpeg',
    '.jpg',
    '.png',
    '.ppm',
    '.tif',
    '.tiff',
    '.webp',
]
