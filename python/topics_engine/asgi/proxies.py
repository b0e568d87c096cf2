"""The address of a client: that of its connection, or what a trusted proxy says."""

from __future__ import annotations

import ipaddress
import re

from ..errors import InvalidRequest
from .messages import Scope

_HEADER = b"x-forwarded-for"
_WITH_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The addresses of proxies whose `X-Forwarded-For` is believed.

    Anyone can send that header. A proxy appends the address that it has the request from, so the
    client is the last address in the list that is not a trusted proxy's.

    Raises:
        InvalidRequest: an entry is not an address or a network.
    """

    def __init__(self, proxies: str) -> None:
        entries = [entry.strip() for entry in proxies.split(",")] if proxies.strip() else []
        try:
            self._networks = [ipaddress.ip_network(entry) for entry in entries]
        except ValueError as error:
            raise InvalidRequest(
                f"trusted_proxies: {error}: give addresses or networks, separated by commas"
            ) from None

    def resolve(self, scope: Scope) -> None:
        """Sets the client of the scope to the address that trusted proxies name."""
        peer = scope.get("client")
        if not self._networks or not peer:
            return
        client = _address(peer[0])
        given = [value for name, value in scope["headers"] if name == _HEADER]
        for entry in reversed(b",".join(given).decode("latin-1").split(",")):
            if client is None or not self._trusts(client):
                break
            before = _address(entry)
            if before is None:
                break
            client = before
            scope["client"] = (str(client), 0)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _address(text: str) -> Address | None:
    """The address of an entry, which may have a port; `None` for any other text."""
    text = text.strip()
    if found := _WITH_PORT.fullmatch(text):
        text = found[1] or found[2]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
