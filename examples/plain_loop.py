"""A plain PyTorch loop on handwritten digits, with three lines that make it sparse (marked 1, 2, 3).

    python examples/plain_loop.py

The network starts with a few percent of its weights. Every few epochs it is evaluated and grows, until its scores
indicate that more weights would not help; after that, training continues at a fixed density.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import pathgrow


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def main(epochs: int = 80, warmup: int = 20, every: int = 4) -> tuple[float, float]:
    """Train, and return the final density and validation accuracy."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, val = order[:1200], order[1200:]

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    sparse = pathgrow.attach(model, optimizer, pathgrow.methods.create("gcg"), images[:1])  # 1: apply the masks

    for epoch in range(1, epochs + 1):
        model.train()
        for batch in train[torch.randperm(len(train))].split(64):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        # Train the seed network to its plateau first: early scores would rise with training, not with density.
        if epoch >= warmup and epoch % every == 0:
            density, score = sparse.density, accuracy(model, images[val], labels[val])
            verdict = sparse.observe(score)  # 2: the network grows, or its density is final
            print(f"epoch {epoch:3d}  density {density:6.1%}  accuracy {score:6.1%}  {type(verdict).__name__}")

    print(sparse.summary())  # relative to the densest network grown; pathgrow.discover compares with dense
    sparse.detach()  # 3: remove the hooks; the plain model remains, with zeros
    return sparse.density, accuracy(model, images[val], labels[val])


if __name__ == "__main__":
    main()
