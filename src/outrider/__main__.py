"""`python -m outrider`: where the command itself is not on the path."""

from outrider.cli.main import main

main()
