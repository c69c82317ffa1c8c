"""`python -m pathgrow` is the command `pathgrow`."""

import os
import sys

if sys.path[:1] in ([""], [os.getcwd()]) and not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the working directory first, which may hold modules of somebody else

from pathgrow.cli.main import main

main()
