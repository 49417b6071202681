"""moto's S3 server, for tests: `s3.py BUCKET (open|strict)`. Prints `port N`; ends when its standard input does.

moto looks whether a name is taken and then writes, in two steps, in as many threads as there are requests; S3 does both in one.
So requests are answered one at a time here, or two of them could create one name. Bodies are read before that: a client that
stops in the middle of one must not hold up the others.

`strict`: the server knows nobody, so every key that a client signs with is a wrong one.
"""

import io
import os
import sys
import threading

BUCKET, MODE = sys.argv[1:]
# The first request, which makes the bucket, is believed; then everybody has to be known, or nobody has to.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "1" if MODE == "strict" else "inf"

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: E402
from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: E402
from werkzeug.test import Client  # noqa: E402


class Quiet(WSGIRequestHandler):
    """HTTP/1.1, so that connections are used again; no line for each request."""

    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass


class OneAtATime:
    def __init__(self, application):
        self.application = application
        self.lock = threading.Lock()

    def __call__(self, environ, start_response):
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        if len(body) < length:
            start_response("400 Bad Request", [("Content-Length", "0")])
            return [b""]
        environ["wsgi.input"] = io.BytesIO(body)
        with self.lock:
            return [b"".join(self.application(environ, start_response))]


def end_with_standard_input():
    while os.read(0, 4096):
        pass
    os._exit(0)


def main():
    threading.Thread(target=end_with_standard_input, daemon=True).start()
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    made = Client(application).put(f"/{BUCKET}", base_url="http://127.0.0.1")
    if made.status_code != 200:
        sys.exit(f"no bucket: {made.status} {made.get_data(as_text=True)}")
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(f"port {server.server_port}", flush=True)
    server.serve_forever()


main()
