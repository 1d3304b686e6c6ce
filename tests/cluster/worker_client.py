"""What Ray starts as a worker: it has one forked by `tests/cluster/worker_server.py` and waits for it to end.

Only the standard library is imported here.
"""

import json
import os
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(os.environ["VITREOUS_WORKER_SERVER"])
        socket.send_fds(client, [b"\0"], [1, 2])
        client.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
        client.shutdown(socket.SHUT_WR)
        client.recv(1)
