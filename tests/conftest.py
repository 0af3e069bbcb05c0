"""Ctrl-C as at a terminal: a runner in the background may have been told to ignore it, and children inherit that."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
