"""Density rules: evaluated networks in, verdict and answer out; no tensors, no files, no prose."""
