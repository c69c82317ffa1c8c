"""Choosing the density: curves, fits and rules. Points in, verdict and answer out; no tensors, no files."""
