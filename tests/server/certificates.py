"""A certificate for localhost that nobody trusts, with its key, made for these tests and valid for a hundred years."""

import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUDgwrkP8l1u9LxWDtI2CEbk4j2aAwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTA3MzIzOFoYDzIxMjYxMDI4
MDczMjM4WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARFjETas18wZSyPrNTAe4OELKHMnn0uoTuREl9gAXBcWB/uB0PejuzY
djA4Wls9N+QgDf8kRVWaIPZr5QW4uHO+o28wbTAdBgNVHQ4EFgQUdfrRca/jI1H6
yNRe6Jt5oCn19AgwHwYDVR0jBBgwFoAUdfrRca/jI1H6yNRe6Jt5oCn19AgwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhAL9ykmOrDlcArVh2IMeOdh/BVy5n4AAu/awDRR2pVNJ6AiA7
NbHiwTRF/juoyUT9RHjHopDg1UhTkHM9XqlnYmnXNA==
-----END CERTIFICATE-----
"""

KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQggcBpQJ2UFI0Txh/l
P9sG0HZC8ml4qIPY5gx5/fN8EvGhRANCAARFjETas18wZSyPrNTAe4OELKHMnn0u
oTuREl9gAXBcWB/uB0PejuzYdjA4Wls9N+QgDf8kRVWaIPZr5QW4uHO+
-----END PRIVATE KEY-----
"""


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """The two as files: certificate, key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    return certificate, key


@contextmanager
def read_once(folder: Path, data: bytes) -> Iterator[Path]:
    """A file that can be read once, as that of a shell's `<(…)`; a second read waits for data that never come."""
    path = folder / "once"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    try:
        yield path
    finally:
        writer.join()


def trusting() -> ssl.SSLContext:
    """A client's context that trusts the certificate."""
    return ssl.create_default_context(cadata=CERTIFICATE)
