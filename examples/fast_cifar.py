"""RigL at 10% density: one ResNet-32 on CIFAR-10, on one GPU, with CUDA graphs and data resident on the device.

    pathgrow data get cifar10 --data-root data
    python examples/fast_cifar.py --data-root data
    python examples/fast_cifar.py --data digits --epochs 2      # small enough for a CPU

Prints the test accuracy and the training throughput. Throughput measured on an H200: benchmarks/results/engine.json.
"""

import argparse
import time

import pathgrow
from pathgrow import data, methods, models
from pathgrow.trainer import EngineOptions, Trainer
from pathgrow.trainer.feed import epoch_batches
from pathgrow.trainer.interface import Job
from pathgrow.trainer.recipes import Recipe, recipe

DENSITY = 0.1
UPDATE_INTERVAL = 100
DROP_FRACTION = 0.3
SEED = 0
CIFAR = recipe("cifar")  # 160 epochs, SGD with Nesterov momentum, lr 0.1, cosine, batch size 128, crops and flips
DIGITS = Recipe(epochs=20, lr=0.05, batch_size=64)
ENGINE = EngineOptions(step="auto", precision="auto", compile="auto")  # CUDA graphs and bf16 if there is a GPU


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train, and return the test accuracy and the number of training images per second."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", choices=["cifar10", "digits"], default="cifar10")
    parser.add_argument("--data-root", help="directory of downloaded datasets")
    parser.add_argument("--epochs", type=int, help="default: the recipe's")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage")
    options = parser.parse_args(arguments)

    dataset = data.load(options.data, options.data_root)  # a missing dataset is an error that says how to download it
    plan = CIFAR if options.data == "cifar10" else DIGITS
    epochs = options.epochs or plan.epochs
    trainer = Trainer(dataset, plan, ENGINE, on_epoch=lambda epoch, of, loss: print(f"epoch {epoch}/{of}: {loss:.4f}"))

    channels, size, _ = dataset.shape
    shape = {"in_channels": channels, "image_size": size, "width": options.width}
    model, optimizer = trainer.place(models.create("resnet32", dataset.classes, seed=SEED, **shape))
    _, steps_per_epoch = epoch_batches(len(dataset.train), plan)
    schedule = {"num_steps": epochs * steps_per_epoch, "update_interval": UPDATE_INTERVAL}
    method = methods.create("rigl", density=DENSITY, drop_fraction=DROP_FRACTION, **schedule)
    sparse = pathgrow.attach(model, optimizer, method, dataset.example_input().to(trainer.plan.device), seed=SEED)

    start = time.perf_counter()  # recording the CUDA graphs, and compiling if it pays off, are part of the time
    [num_images] = trainer.train([Job(attached=sparse, epochs=epochs, seed=SEED)])
    images_per_second = num_images / (time.perf_counter() - start)
    accuracy, _ = trainer.evaluate(dataset.test)(model)
    print(f"density {sparse.density:.1%}: test accuracy {accuracy:.2%}, {images_per_second:,.0f} images/s")
    return accuracy, images_per_second


if __name__ == "__main__":
    main()
