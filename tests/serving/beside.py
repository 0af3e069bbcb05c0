"""What goes on beside a test, on a thread of its own."""

import threading


class Beside:
    """Takes a `step` every so many seconds while a `with` block runs."""

    def __init__(self, every):
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        while not self._over.wait(self._every):
            self.step()
