"""Binary masks over the weights of a model, their file format, and exact sampling of positions."""

from pathgrow.masks.masks import Masks

__all__ = ["Masks"]
