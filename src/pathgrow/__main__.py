"""`python -m pathgrow` is the command `pathgrow`."""

from pathgrow.cli import main

main()
