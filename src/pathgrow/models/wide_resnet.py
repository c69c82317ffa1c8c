"""Wide residual networks for small images (Zagoruyko & Komodakis 2016), as used by RigL and Sparse Momentum."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError, require
from pathgrow.models.blocks import ResidualNetwork, kaiming_


class PreActBlock(nn.Module):
    """Batch norm, ReLU and a 3x3 convolution, twice, with dropout between the convolutions.

    If the shape changes, the shortcut is a 1x1 convolution of the input after batch norm and ReLU.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        changes = stride != 1 or channels_in != channels_out
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        y = F.relu(self.bn2(self.conv1(activated)))
        y = F.dropout(y, self.dropout, self.training)
        out: Tensor = self.conv2(y) + (x if self.shortcut is None else self.shortcut(activated))
        return out


class WideResNet(ResidualNetwork):
    """Three stages of pre-activation blocks at full, half and quarter resolution.

    Parameters
    ----------
    depth : int
        Number of convolutions including shortcuts, 6n + 4: 16, 22, 28, 40.
    widen : int
        Widening factor of the stages.
    width : int
        Channels of the stem, and of the first stage before widening.
    dropout : float
        Dropout between the two convolutions of a block; 0.3 in the code of RigL, its reproduction and Sparse Momentum.
    image_size : int
        Size of `example_input`; the network accepts any size.
    """

    def __init__(
        self,
        depth: int,
        classes: int,
        *,
        widen: int = 2,
        in_channels: int = 3,
        width: int = 16,
        image_size: int = 32,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__((in_channels, image_size, image_size))
        if depth < 10 or (depth - 4) % 6:
            raise UserError(f"the depth of a wide ResNet must be 6n + 4 (e.g. 22 or 28), got {depth}")
        require(0 <= dropout < 1, "dropout", dropout, "in [0, 1)")
        widths = [width * widen * 2**stage for stage in range(3)]
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.add_stages(partial(PreActBlock, dropout=dropout), width, widths, 3 * [(depth - 4) // 6])
        self.bn = nn.BatchNorm2d(widths[2])
        self.fc = nn.Linear(widths[2], classes)
        kaiming_(self, generator)

    def stem(self, x: Tensor) -> Tensor:
        stem: Tensor = self.conv1(x)
        return stem

    def activate(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(x))
