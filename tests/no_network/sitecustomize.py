"""On PYTHONPATH in `make test`: every Python process of the tests and lessons may talk to this machine only."""

import ipaddress
import socket


class NetworkIsBlocked(OSError):
    """A test or a lesson wanted to leave this machine."""


def is_here(host: object) -> bool:
    if host in (None, "", b"", "localhost", b"localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def guarded(name: str):
    real = getattr(socket.socket, name)

    def call(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not is_here(address[0]):
            raise NetworkIsBlocked(f"the network is blocked in tests: {address}")
        return real(self, address)

    return call


def resolve(host, *args, real=socket.getaddrinfo, **kwargs):
    if not is_here(host):
        raise socket.gaierror(socket.EAI_NONAME, f"the network is blocked in tests: {host!r}")
    return real(host, *args, **kwargs)


for method in ("connect", "connect_ex"):
    setattr(socket.socket, method, guarded(method))
socket.getaddrinfo = resolve
