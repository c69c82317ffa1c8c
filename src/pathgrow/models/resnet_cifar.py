"""ResNet-20/32/44/56/110 for small images (He et al. 2016, section 4.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.models.blocks import BasicBlock, stage
from pathgrow.models.init import kaiming_
from pathgrow.models.reference import ReferenceModel


class ResNetCifar(ReferenceModel):
    """Three stages of basic blocks at full, half and quarter resolution.

    Shortcuts between stages are projections (1x1 convolution and batch norm), as in the lottery-ticket and PHEW code,
    not the parameter-free padding of the original: a projection is a path with weights of its own.

    Parameters
    ----------
    depth : int
        6n + 2 weighted layers: 20, 32, 44, 56, 110.
    width : int
        Channels of the first stage; doubled at each of the next two.
    """

    def __init__(
        self,
        depth: int,
        classes: int,
        *,
        in_channels: int = 3,
        width: int = 16,
        image_size: int = 32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__((in_channels, image_size, image_size))
        if depth < 8 or (depth - 2) % 6:
            raise UserError(f"a CIFAR ResNet cannot have depth {depth}: it needs 6n + 2 layers, such as 20 or 56")
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(BasicBlock, width, width, blocks, stride=1)
        self.layer2 = stage(BasicBlock, width, 2 * width, blocks, stride=2)
        self.layer3 = stage(BasicBlock, 2 * width, 4 * width, blocks, stride=2)
        self.fc = nn.Linear(4 * width, classes)
        kaiming_(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        logits: Tensor = self.fc(x)
        return logits
