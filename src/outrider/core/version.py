"""Of this package, for every part of it."""

VERSION = "0.1.0"
