# SPDX-License-Identifier: Apache-2.0
"""Speaks TLS on one side and plain TCP on the other, for a server that has no TLS of its own.
Usage: tls_proxy.py SERVER_PORT CERTIFICATE KEY; prints its port, ends with its standard input."""
import os
import socket
import ssl
import sys
import threading


def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def serve(client, context, port):
    try:
        outside = context.wrap_socket(client, server_side=True)
        inside = socket.create_connection(("127.0.0.1", port))
    except OSError:
        client.close()
        return
    threading.Thread(target=pump, args=(outside, inside), daemon=True).start()
    pump(inside, outside)


def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    def accept():
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client, context, int(sys.argv[1])), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


main()
