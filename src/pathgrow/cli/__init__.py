"""The `pathgrow` command: one file per subcommand."""

import os
import signal
import sys

_is_command = os.path.basename(sys.argv[0]) in ("pathgrow", "__main__.py")
if _is_command and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports that follow without a traceback
