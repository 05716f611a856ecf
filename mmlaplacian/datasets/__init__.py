"""Datasets made from data in packages, and checks of dataset folders."""

#: What counts as an image, in lower case.
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
