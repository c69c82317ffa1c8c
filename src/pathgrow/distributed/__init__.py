"""Communication between the processes of one training."""
