"""The command `pathgrow`: dispatch to a subcommand, and turn errors into messages and exit codes.

0: success. 1: a run that could not continue. 2: an error in the command. 128 + n: stopped by signal n.
"""

import os
import sys
import warnings
from argparse import RawDescriptionHelpFormatter
from typing import Any, NoReturn

from pathgrow.cli.flags import Parser, Subcommand
from pathgrow.cli.lists import LIST_COMMANDS
from pathgrow.cli.run import RUN_COMMANDS
from pathgrow.cli.study import STUDY_COMMANDS
from pathgrow.distributed.interrupts import Interrupted, reraise_interrupt, signal_handlers
from pathgrow.errors import OUT_OF_MEMORY, PeerFailed, RunFailed, UserError, printable, unknown_name
from pathgrow.version import __version__

COMMANDS = {**RUN_COMMANDS, **STUDY_COMMANDS, **LIST_COMMANDS}
_INTERRUPTED = 130
"""The shell's exit code for Ctrl-C."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and exit with its code; users see no traceback."""
    warnings.showwarning = _show_warning
    with signal_handlers():
        code = _exit_code(sys.argv[1:] if arguments is None else arguments)
    process_group = sys.modules.get("pathgrow.distributed.process_group")
    if code and process_group is not None and process_group.is_initialized():
        # Threads of an unfinished process group may abort this process as it exits, losing its exit code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def parse(arguments: list[str]) -> tuple[Subcommand, dict[str, Any]]:
    """Return the command that the arguments name and its values; wrong arguments are a `UserError`."""
    for length in (2, 1):  # `data get` before `data`
        name = " ".join(arguments[:length])
        if len(arguments) >= length and name in COMMANDS:
            command, rest = COMMANDS[name], arguments[length:]
            inner = [other.removeprefix(f"{name} ") for other in COMMANDS if other.startswith(f"{name} ")]
            if inner and rest and not rest[0].startswith("-") and not command.takes_name:
                raise unknown_name(f"`pathgrow {name}` command", rest[0], inner)
            return command, command.parser(f"pathgrow {name}").values(rest, command.removed)
    if arguments and not arguments[0].startswith("-"):
        raise unknown_name("command", arguments[0], COMMANDS)
    parser = _top_level()
    parser.values(arguments, {})  # exits after --help and --version
    parser.print_help()
    parser.exit(2)


def _top_level() -> Parser:
    parser = Parser("pathgrow", "Discover how dense a neural network needs to be.")
    parser.usage = "pathgrow COMMAND [OPTIONS]"
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.add_argument("--version", action="version", version=f"pathgrow {__version__}", help="Show the version.")
    listed = "\n".join(f"  {name:<14}{command.summary}" for name, command in COMMANDS.items() if name != "data")
    parser.epilog = f"commands:\n{listed}\n\nSee `pathgrow COMMAND --help` for the options of a command."
    return parser


def _exit_code(arguments: list[str]) -> int:
    try:
        with reraise_interrupt():
            command, values = parse(arguments)
            command.run(**values)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit
        return 0
    except SystemExit as exit:  # after --help and --version
        return exit.code if isinstance(exit.code, int) else 0
    except PeerFailed as error:
        return error.exit_code  # printed by the rank that failed
    except UserError as error:
        return _fail(error, 2)
    except RunFailed as error:
        return _fail(error, 1)
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"cannot access {error.filename} ({error.strerror or error})", 1)
    except (MemoryError, RuntimeError) as error:
        text = str(error).partition("\n")[0]
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(text):
            raise
        return _fail(
            f"out of memory ({text or 'MemoryError'}); finished stages are kept: rerun the command with "
            "--max-concurrent 1, or start another run with a smaller model or --batch-size",
            1,
        )
    except Interrupted as error:
        return _fail(
            f"stopped by {error}; what is trained so far is kept, rerun the command to resume", error.exit_code
        )
    except KeyboardInterrupt:
        return _fail("interrupted; finished stages are kept, rerun the command to resume", _INTERRUPTED)
    return 0


def _fail(message: object, code: int) -> int:
    print(f"pathgrow: {printable(message)}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"pathgrow: warning: {printable(message)}", file=sys.stderr)
