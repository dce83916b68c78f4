"""A server on loopback that remembers what was done to it, for programs that are killed."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Outside:
    """The world outside: what it was asked to do, each time."""

    def __init__(self):
        self.lock = threading.Lock()
        self.values = {}
        self.puts = []
        self.mails = []
        self.parcels = []
        self.rooms = {}
        """Those that are booked, by name, with the key of the booking."""
        self.bookings = []
        self.cancellations = []
        self.busy = 0
        outside = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def answer(self):
                with outside.lock:
                    outside.busy += 1
                try:
                    length = int(self.headers.get("Content-Length") or 0)
                    body = json.loads(self.rfile.read(length) or b"null")
                    key = self.headers.get("Idempotency-Key", "")
                    takes = 0.0 if self.command == "GET" else 0.008  # a real one takes its time
                    time.sleep(takes)
                    with outside.lock:
                        found = outside.asked(self.command, self.path.split("/")[1:], body, key)
                    time.sleep(takes)
                    reply = json.dumps(found).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(reply)))
                    self.end_headers()
                    self.wfile.write(reply)
                except OSError:
                    pass  # who asked was killed
                finally:
                    with outside.lock:
                        outside.busy -= 1

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, address):
                pass  # who asked was killed

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        self._thread.start()

    def asked(self, method, path, body, key):
        """Do what is asked for, and return what comes of it."""
        kind, name = path[0], path[-1]
        if kind == "prices":
            return {"price": 3}
        if kind == "values":
            self.puts.append((name, body["value"], key))
            self.values[name] = body["value"]
            return {"stored": body["value"]}
        if kind == "mails" and method == "POST":
            self.mails.append((body["subject"], key))
            return {"sent": body["subject"]}
        if kind == "mails":
            return next(({"sent": words} for words, known in self.mails if known == name), None)
        if kind == "parcels" and method == "POST":
            self.parcels.append((body["address"], key))
            return {"on its way to": body["address"]}
        if kind == "parcels":
            found = [address for address, known in self.parcels if known == name]
            return {"on its way to": found[0]} if found else None
        if kind == "rooms" and method == "POST":
            self.bookings.append((name, key))
            assert name not in self.rooms, "booked twice"
            self.rooms[name] = key
            return {"booked": name}
        if kind == "rooms" and method == "DELETE":
            self.cancellations.append((name, key))
            self.rooms.pop(name, None)
            return None
        if kind == "rooms":
            return {"booked": name} if name in self.rooms else None
        raise AssertionError((method, path))

    def settle(self):
        """Wait until nothing is under way that somebody who was killed has asked for."""
        time.sleep(0.03)
        while self.busy:
            time.sleep(0.01)

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
