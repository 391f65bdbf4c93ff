"""Which internet addresses are public: where a request may go although somebody else chose the address.

Rules: what isn't known to be public is refused. IPv6 addresses that carry an IPv4 address are judged by that one where a network may
really translate them (mapped, NAT64 of RFC 6052), and refused where nothing sensible uses them any more (6to4, Teredo, ISATAP).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

# The IANA special-purpose address registries (RFC 6890), as far as a block isn't globally reachable, and what lies in public space
# but isn't public: multicast, class E, the address at which Azure serves metadata.
_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
            "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
            "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
        ),
    )
)  # fmt: skip
_UNICAST_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)  # upper half of the interface identifier, RFC 5214 section 6.1


def public(address: str) -> bool:
    """Whether `address` (as `getaddrinfo` gives it) is one that anybody in the internet could mean."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False  # also what has a zone: link-local
    return _public_4(ip) if isinstance(ip, IPv4Address) else _public_6(ip)


def _public_4(ip: IPv4Address) -> bool:
    return ip.is_global and not any(ip in network for network in _NOT_PUBLIC_4)


def _public_6(ip: IPv6Address) -> bool:
    if ip.scope_id is not None:
        return False
    if ip.ipv4_mapped is not None:
        return _public_4(ip.ipv4_mapped)
    if ip in _NAT64:
        return _public_4(IPv4Address(int(ip) & 0xFFFFFFFF))
    if (int(ip) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return ip in _UNICAST_6 and ip.is_global and not any(ip in network for network in _NOT_PUBLIC_6)
