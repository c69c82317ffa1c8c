"""A plain PyTorch loop on handwritten digits, made sparse by three lines (marked 1, 2, 3).

    python examples/plain_loop.py

The network starts with a few per cent of its weights and grows after each epoch, until its own validation scores say
that more weights would not help. Then the density is settled and training simply goes on.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import pathgrow


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def main(epochs: int = 40) -> tuple[float, float]:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, val = order[:1200], order[1200:]

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    sparse = pathgrow.attach(model, optimizer, pathgrow.methods.create("gcg"), images[:1])  # 1: masks on

    for epoch in range(epochs):
        model.train()
        for batch in train[torch.randperm(len(train))].split(64):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        score = accuracy(model, images[val], labels[val])
        density = sparse.density
        verdict = sparse.observe(score)  # 2: the network grows here, or its density is settled
        print(f"epoch {epoch + 1:2d}   density {density:6.1%}   accuracy {score:6.1%}   {type(verdict).__name__}")

    sparse.detach()  # 3: hooks off; what is left is the plain model with zeros
    return sparse.density, accuracy(model, images[val], labels[val])


if __name__ == "__main__":
    main()
