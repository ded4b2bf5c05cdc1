"""`autoconfig` and `python -m autoconfig`: the command line, with Ctrl-C clean even while it is being loaded."""

import sys

try:
    from autoconfig.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    main()
