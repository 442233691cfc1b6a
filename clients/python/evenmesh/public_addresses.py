"""Tell public addresses from those of this machine, its neighbours, and a cloud's metadata."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

_NAT64: Final = IPv6Network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """Return whether an address is public, and the address within it, too, if it wraps another."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = IPv4Address(address.packed[-4:])
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast
