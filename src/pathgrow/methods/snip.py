"""SNIP: keep the weights whose removal would change the loss most, by a first-order estimate."""

from torch import Tensor

from pathgrow.masks.sampling import top_k
from pathgrow.methods.method import ByScore, Method, NetworkView


def snip(*, density: float = 0.1) -> Method:
    """SNIP (Lee, Ajanthan & Torr, SNIP: Single-shot Network Pruning based on Connection Sensitivity, 2019).

    Rule: keep the largest |weight x loss gradient| over all layers, at initialization, on one training batch. `attach`
    needs `loss` and `batches`.

    Differences: biases are neither scored nor pruned. Training starts from the weights that were scored, as in later
    work; the authors' code draws new ones. Batch norm runs in training mode, as in the steps that follow, where the
    authors' code has it in inference mode.
    """
    start = ByScore(_sensitivities, top_k)
    return Method(name="snip", start=start, start_density=density, needs=frozenset({"data"}))


def _sensitivities(net: NetworkView) -> dict[str, Tensor]:
    gradients = net.signed_gradients()
    return {name: (weight.double() * gradients[name]).abs() for name, weight in net.weights().items()}
