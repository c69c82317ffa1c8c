"""ResNet-20/32/44/56/110 for small images (He et al. 2016, section 4.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError
from pathgrow.models.blocks import BasicBlock, ReferenceModel, kaiming_, residual_stage


class ResNetCifar(ReferenceModel):
    """Three stages of basic blocks at full, half and quarter resolution.

    Shortcuts between stages are projections (1x1 convolution and batch norm), as in the code of the lottery ticket
    hypothesis and PHEW, not the parameter-free padding of the original paper.

    Parameters
    ----------
    depth : int
        6n + 2 weighted layers: 20, 32, 44, 56, 110.
    width : int
        Channels of the first stage; each of the next two doubles them.
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
            raise UserError(f"the depth of a CIFAR ResNet must be 6n + 2 (e.g. 20 or 56), got {depth}")
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = residual_stage(BasicBlock, width, width, blocks, stride=1)
        self.layer2 = residual_stage(BasicBlock, width, 2 * width, blocks, stride=2)
        self.layer3 = residual_stage(BasicBlock, 2 * width, 4 * width, blocks, stride=2)
        self.fc = nn.Linear(4 * width, classes)
        kaiming_(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        logits: Tensor = self.fc(x)
        return logits
