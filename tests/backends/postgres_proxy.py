"""TCP proxies in front of PostgreSQL: to count, to lose commits, and a bad network."""

import random
import select
import socket
import threading
import time
from contextlib import suppress

LONGEST_WAIT = 30
COMMIT = b"COMMIT\0"
APPEND = b".append_after("
"""In the statement that appends and commits."""
SYNC = b"S\0\0\0\4"
"""The message after which the server replies."""


class Proxy:
    """Forwards connections. `lose` is the fault that befalls the next commit:

    `before`: it does not reach the server. `after`: it does, but the reply is lost.
    `late`: it reaches the server when the next transaction already asks for the row lock.
    """

    def __init__(self, port):
        self.target = ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lose = None
        self.lost = 0
        self.round_trips = 0
        self.locking = threading.Event()  # a transaction asked for a row lock
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.forward, args=(client,), daemon=True).start()

    def forward(self, client):
        with client, suppress(OSError), socket.create_connection(self.target) as server:
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 20)
                    if not data:
                        return
                    if source is client:
                        if b"FOR UPDATE" in data:
                            self.locking.set()
                        if self.lose and (COMMIT in data or APPEND in data):
                            while not (SYNC in data[-10:] or data.endswith(COMMIT)):
                                data += client.recv(1 << 20)
                            self.lose_commit(client, server, data)
                            return
                        server.sendall(data)
                    else:
                        received = self.count(received + data)
                        if not self.reply(client, data):
                            return

    def reply(self, client, data):
        """Forward a reply; return whether the connection goes on."""
        client.sendall(data)
        return True

    def lose_commit(self, client, server, data):
        how, self.lose = self.lose, None
        self.lost += 1
        if how == "after":
            server.sendall(data)
            server.recv(1)  # the commit is done
        elif how == "late":
            self.locking.clear()
            client.shutdown(socket.SHUT_RDWR)
            assert self.locking.wait(LONGEST_WAIT)
            server.sendall(data)
            server.recv(1)

    def count(self, received):
        """Count the messages ReadyForQuery, each the end of a round trip; return the rest."""
        while len(received) >= 5:
            size = 1 + int.from_bytes(received[1:5], "big")
            if len(received) < size:
                break
            self.round_trips += received[:1] == b"Z"
            received = received[size:]
        return received

    def close(self):
        self.listener.close()


class BadNetwork(Proxy):
    """Drops, cuts, delays and repeats replies at random; the first ones of a connection pass."""

    def __init__(self, port, seed, faults=("drop", "cut", "delay", "repeat"), one_in=30):
        self.random = random.Random(seed)
        self.faults = faults
        self.one_in = one_in
        self.done = dict.fromkeys(faults, 0)
        super().__init__(port)

    def reply(self, client, data):
        fault = self.random.choice(self.faults)
        if b"S\0\0\0" in data or self.random.randrange(self.one_in):  # a login, or no fault
            client.sendall(data)
            return True
        self.done[fault] += 1
        if fault == "delay":
            time.sleep(self.random.uniform(0, 0.05))
        if fault == "cut":
            data = data[: self.random.randrange(len(data))]
        if fault != "drop":
            client.sendall(data * 2 if fault == "repeat" else data)
        return fault in ("delay", "repeat")
