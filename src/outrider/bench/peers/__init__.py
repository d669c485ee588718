"""The same prompts through other systems, each in a process (and maybe a Python) of its own.

Empty, because the adapters import it where only their peer is installed; see `run` for the start.
"""
