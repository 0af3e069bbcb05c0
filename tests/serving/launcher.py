"""The least that a launcher does: so many processes of one command, each told its rank.

`python launcher.py COUNT COMMAND...`. A signal goes to all of them. It ends none of them itself, and ends with
rank 0's status after the last.
"""

import os
import signal
import socket
import subprocess
import sys


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    ranks = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: [rank.send_signal(number) for rank in ranks])
    job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    for rank in range(count):
        told = {"RANK": str(rank), "LOCAL_RANK": str(rank), **job}
        ranks.append(subprocess.Popen(command, env=os.environ | told))
    statuses = [rank.wait() for rank in ranks]
    print(f"statuses {statuses}", flush=True)
    return statuses[0] if statuses[0] >= 0 else 128 - statuses[0]


if __name__ == "__main__":
    sys.exit(main())
