"""`python -m pathgrow` is the command `pathgrow`."""

from pathgrow.cli.main import main

main()
