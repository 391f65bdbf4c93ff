"""Which addresses are public, and what an allowance means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.outgoing.addresses import public
from app.outgoing.allow import Allow, normal_host

_REFUSED = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.8.8.8 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1
192.88.99.1 192.168.1.1 198.18.0.1 198.51.100.7 203.0.113.9 224.0.0.1 239.1.2.3 240.0.0.1 255.255.255.255 168.63.129.16
:: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1
fe80::1 fe80::1%eth0 fec0::1 fc00::1 fd00:ec2::254 ff02::1 2001::1 2001:db8::1 2002:7f00:1:: 2002:808:808::1 3fff::1 4000::1
2001:4860::5efe:7f00:1 2001:4860::200:5efe:a00:1 localhost 1.2.3 8.8.8.8/32
"""
_TAKEN = (
    "1.1.1.1 8.8.8.8 93.184.216.34 172.32.0.1 192.169.0.1 ::ffff:8.8.8.8 64:ff9b::808:808 2001:4860:4860::8888 2606:4700::1111"
)


@pytest.mark.parametrize("address", ["", *_REFUSED.split()])
def test_what_is_not_public_is_refused(address: str) -> None:
    assert not public(address)


@pytest.mark.parametrize("address", _TAKEN.split())
def test_what_is_public_is_taken(address: str) -> None:
    assert public(address)


@given(st.ip_addresses(v=4))
def test_a_mapped_or_translated_address_is_judged_by_what_it_carries(address: object) -> None:
    assert public(f"::ffff:{address}") == public(f"64:ff9b::{address}") == public(str(address))


def test_hosts_are_allowed_by_name_and_port() -> None:
    allow = Allow(["Tools.Internal:8443", "any.internal", "[::1]:9000", "[fd00::1]"])
    for place in [("tools.internal", 8443), ("any.internal", 1), ("any.internal", 443), ("::1", 9000), ("fd00::1", 5)]:
        assert place in allow
    for place in [("tools.internal", 443), ("sub.any.internal", 443), ("::1", 9001), ("127.0.0.1", 9000)]:
        assert place not in allow


@pytest.mark.parametrize(
    "entry", ["a b", "a:0", "a:65536", "a:x", "http://a", "::1", "[a]", "*", "a/b", "/no/such/file.pem", "-x", "a..b"]
)
def test_a_wrong_entry_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match=r"must have HOST|can't be read"):
        Allow([entry])


def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.pem"
    path.write_text("nothing\n")
    with pytest.raises(ValueError, match=r"x\.pem"):
        Allow([str(path)])


def test_hosts_are_compared_in_one_form() -> None:
    assert normal_host("ExAmple.ORG.") == "example.org"
    assert normal_host("bücher.example") == "xn--bcher-kva.example"
    assert normal_host("0:0::1") == "::1"
    for bad in ["", ".", "a..b", "a b", "-a", "a-", "a_b!", "x" * 300, "ü" * 80]:
        with pytest.raises(ValueError, match="not the name"):
            normal_host(bad)
