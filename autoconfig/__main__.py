"""`autoconfig` and `python -m autoconfig`: the command line, with Ctrl-C clean even while it is being loaded."""

import sys


def main() -> None:
    """Entry point of the `autoconfig` command."""
    try:
        from autoconfig.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
