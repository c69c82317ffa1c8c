"""ResNet-18, 34 and 50 (He et al. 2016); with the ImageNet stem they load torchvision checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import unknown_name
from pathgrow.models.blocks import BasicBlock, Bottleneck, ReferenceModel, kaiming_, residual_stage

_STAGES: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(ReferenceModel):
    """Four stages of residual blocks.

    Parameters
    ----------
    depth : {18, 34, 50}
    stem : {"small", "imagenet"}
        "small": a 3x3 convolution that keeps the resolution, for images of 32 to 64 pixels. "imagenet": 7x7 with
        stride 2, then max-pooling; at 64 pixels the network is 15 times cheaper and not comparable.
    image_size : int
        Size of `example_input`; the network accepts any size.
    """

    def __init__(
        self,
        depth: int,
        classes: int,
        *,
        stem: str = "small",
        in_channels: int = 3,
        width: int = 64,
        image_size: int = 64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__((in_channels, image_size, image_size))
        if depth not in _STAGES:
            raise unknown_name("ResNet depth", str(depth), map(str, _STAGES))
        block, blocks = _STAGES[depth]
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, width, 7, 2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, 2, padding=1)
        elif stem == "small":
            self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        else:
            raise unknown_name("ResNet stem", stem, ("small", "imagenet"))
        self.bn1 = nn.BatchNorm2d(width)
        widths = [width * 2**i for i in range(4)]
        ends = [w * block.expansion for w in widths]
        self.layer1 = residual_stage(block, width, widths[0], blocks[0], stride=1)
        self.layer2 = residual_stage(block, ends[0], widths[1], blocks[1], stride=2)
        self.layer3 = residual_stage(block, ends[1], widths[2], blocks[2], stride=2)
        self.layer4 = residual_stage(block, ends[2], widths[3], blocks[3], stride=2)
        self.fc = nn.Linear(ends[3], classes)
        kaiming_(self, generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        logits: Tensor = self.fc(x)
        return logits
