"""Sparse training of any PyTorch model: masks attached to an optimizer, and the methods' building blocks."""
