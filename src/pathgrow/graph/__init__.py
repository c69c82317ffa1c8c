"""The traced graph of a model: scope, path scores, random walks, FLOPs and topology are all computed on it."""

from pathgrow.graph.graph import Axis, Channels, Graph, Layer, Link, Window
from pathgrow.graph.inputs import guess_example_input
from pathgrow.graph.tracer import trace

__all__ = ["Axis", "Channels", "Graph", "Layer", "Link", "Window", "guess_example_input", "trace"]
