"""Augmentation of whole batches, on any device.

Randomness and computation are separate: `draw` draws all random numbers of many batches on the CPU, and `apply` is a
pure function of images and these numbers. The same numbers therefore give the same images on every device, in eager
mode, compiled and in a CUDA graph, without synchronizing with the device.

>>> import torch
>>> from pathgrow import augment
>>> from pathgrow.rng import generator
>>> recipe = augment.Augment(crop_padding=4, flip=True)
>>> drawn = augment.draw(recipe, 2, 8, (3, 32, 32), generator(0, "augment"))
>>> images, labels = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64)
>>> first = {name: numbers[0] for name, numbers in drawn.items()}
>>> images, targets = augment.apply(recipe, images, labels, first, mean=torch.ones(3), std=torch.ones(3), classes=10)
>>> images.shape, images.dtype, targets is labels
(torch.Size([8, 3, 32, 32]), torch.float32, True)
"""

from pathgrow.augment.pipeline import Augment, apply, draw

__all__ = ["Augment", "apply", "draw"]
