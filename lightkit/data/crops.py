"""Crops out of whole pictures, before these are scaled."""

from __future__ import annotations

from torchvision.transforms import v2


class RandomResizedCrop(v2.RandomResizedCrop):
    """Cuts a random rectangle out of a picture and scales it (Szegedy et al. 2015, https://arxiv.org/abs/1409.4842).

    The rectangles are those of `torchvision.transforms.v2.RandomResizedCrop`. Where it is the first of `data.augment`,
    and the data set is `lightkit.data.images.ImageFolder` or another with a method `read_whole`, it cuts out of the
    picture as it is in the file, in place of the middle square, so that pictures are scaled once. In any other place it
    does what that of torchvision does.

    Args:
        size: Pixels a side of what comes out, or height and width.
        scale: Smallest and largest area of the rectangle, as a share of that of the picture.
        ratio: Smallest and largest width of the rectangle, as a share of its height.
        interpolation: How it is scaled, such as `bilinear` or `bicubic`.
        antialias: Take the mean of pixels that become one.
    """

    reads_whole = True
