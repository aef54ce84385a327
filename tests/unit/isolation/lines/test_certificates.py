"""Tests of the kernel's certificates, which pods accept whatever their clocks say."""

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


def certificate_of(identity: certificates.ServerIdentity) -> x509.Certificate:
    """Return the certificate that the listener shows to a pod that trusts the identity's authority."""
    to_pod, to_door = ssl.MemoryBIO(), ssl.MemoryBIO()
    pod = certificates.client_context(identity.ca).wrap_bio(to_pod, to_door, server_hostname=ADDRESS)
    server_side = identity.context.wrap_bio(to_door, to_pod, server_side=True)
    for side in (pod, server_side, pod):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate = pod.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate)


def accepts(identity: certificates.ServerIdentity, ahead: datetime.timedelta) -> bool:
    """Return whether a pod accepts the certificate if its clock is this far ahead of the kernel's."""
    its_time = (datetime.datetime.now(datetime.UTC) + ahead).replace(tzinfo=None)
    authority = x509.load_pem_x509_certificate(identity.ca.encode())
    builder = PolicyBuilder().store(Store([authority])).time(its_time)
    verifier = builder.build_server_verifier(x509.IPAddress(ipaddress.ip_address(ADDRESS)))
    try:
        verifier.verify(certificate_of(identity), [])
    except VerificationError:
        return False
    return True


@pytest.mark.parametrize("is_kept", [False, True], ids=["made anew", "of an authority that is kept"])
def test_a_pod_whose_clock_is_an_hour_off_trusts_its_kernel(is_kept: bool, tmp_path: Path) -> None:
    """Either clock may be ahead, at the moment in which certificate and authority are made."""
    identity = certificates.make([ADDRESS], tmp_path if is_kept else None)

    assert all(accepts(identity, datetime.timedelta(hours=hours)) for hours in (-1, 0, 1))
    assert not accepts(identity, datetime.timedelta(days=-30)), "a clock is asked at all"
