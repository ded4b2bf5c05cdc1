"""`autoconfig` and `python -m autoconfig`: the command line, with Ctrl-C clean even while it is being loaded."""

import atexit
import gc
import sys

gc.set_threshold(50_000, 20, 20)  # what a start loads lives to the end: looking for garbage among it finds none
atexit.register(gc.freeze)  # nor is it looked through, three times, at the end: a tenth of a search

try:
    from autoconfig.cli.main import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    main()
