"""`python -m autoconfig` is the `autoconfig` command."""

from autoconfig.cli import main

main()
