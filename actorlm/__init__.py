"""actorlm serves large language models; every part of it is an actor.

Import cost matters here: every process of a tree imports this package, so it imports nothing.
"""

__version__ = "0.1.0"
