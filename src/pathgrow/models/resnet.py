"""ResNets for small images and for ImageNet (He et al. 2016); parameter names are those of torchvision."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathgrow.errors import UserError, unknown_name
from pathgrow.models.blocks import ResidualNetwork, kaiming_


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.downsample = _shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1. The 3x3 has the stride: in the first 1x1 it would skip 3 of 4 pixels."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        width = channels_out // 4
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.downsample = _shortcut(channels_in, channels_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


def _shortcut(channels_in: int, channels_out: int, stride: int) -> nn.Sequential | None:
    """Return a projection if the shape changes, None for the identity."""
    if stride == 1 and channels_in == channels_out:
        return None
    projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(channels_out))


class ResNetCifar(ResidualNetwork):
    """ResNet-20/32/44/56/110: three stages of basic blocks at full, half and quarter resolution.

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
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.add_stages(BasicBlock, width, [width, 2 * width, 4 * width], 3 * [(depth - 2) // 6])
        self.fc = nn.Linear(4 * width, classes)
        kaiming_(self, generator)

    def stem(self, x: Tensor) -> Tensor:
        return F.relu(self.bn1(self.conv1(x)))


_DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


class ResNet(ResidualNetwork):
    """ResNet-18, 34 and 50: four stages; with the ImageNet stem they load torchvision checkpoints.

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
        if depth not in _DEPTHS:
            raise unknown_name("ResNet depth", str(depth), map(str, _DEPTHS))
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, width, 7, 2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, 2, padding=1)
        elif stem == "small":
            self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        else:
            raise unknown_name("ResNet stem", stem, ("small", "imagenet"))
        self.bn1 = nn.BatchNorm2d(width)
        block, expansion = (Bottleneck, 4) if depth == 50 else (BasicBlock, 1)
        widths = [expansion * width * 2**stage for stage in range(4)]
        self.add_stages(block, width, widths, _DEPTHS[depth])
        self.fc = nn.Linear(widths[-1], classes)
        kaiming_(self, generator)

    def stem(self, x: Tensor) -> Tensor:
        return self.maxpool(F.relu(self.bn1(self.conv1(x))))  # type: ignore[no-any-return]
