"""Who the kernel is to pods, whatever their clocks say."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from ramet.isolation.transport import certificates

ADDRESS = "10.0.0.7"


def shown_by(identity: certificates.ServerIdentity) -> x509.Certificate:
    """What a pod that trusts the identity's authority is shown by the listener."""
    to_pod, to_door = ssl.MemoryBIO(), ssl.MemoryBIO()
    pod = certificates.client_context(identity.ca).wrap_bio(to_pod, to_door, server_hostname=ADDRESS)
    door = identity.context.wrap_bio(to_door, to_pod, server_side=True)
    for side in (pod, door, pod):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate = pod.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate)


def accepts(identity: certificates.ServerIdentity, ahead: datetime.timedelta) -> bool:
    """Whether a pod lets itself be shown that, whose clock is so far ahead of the kernel's."""
    its_time = (datetime.datetime.now(datetime.UTC) + ahead).replace(tzinfo=None)
    authority = x509.load_pem_x509_certificate(identity.ca.encode())
    builder = PolicyBuilder().store(Store([authority])).time(its_time)
    verifier = builder.build_server_verifier(x509.IPAddress(ipaddress.ip_address(ADDRESS)))
    try:
        verifier.verify(shown_by(identity), [])
    except VerificationError:
        return False
    return True


@pytest.mark.parametrize("is_kept", [False, True], ids=["made anew", "of an authority that is kept"])
def test_a_pod_whose_clock_is_an_hour_off_trusts_its_kernel(is_kept: bool, tmp_path: Path) -> None:
    """In the moment in which certificate and authority are made, and with either clock ahead."""
    identity = certificates.make([ADDRESS], tmp_path if is_kept else None)

    assert all(accepts(identity, datetime.timedelta(hours=hours)) for hours in (-1, 0, 1))
    assert not accepts(identity, datetime.timedelta(days=-30)), "a clock is asked at all"
