"""`python -m memviz`, and the command `memviz` where it is installed."""

import signal
import sys


def run() -> None:
    # Until there is something to interrupt, Ctrl-C ends this process without a word, as it ends any other program.
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from memviz.commands.command_line import main

    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    sys.exit(main())


if __name__ == "__main__":
    run()
