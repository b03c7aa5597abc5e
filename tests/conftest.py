"""Puts this directory on the path, so that every test can import `support`; shares fixtures."""

from hypothesis import settings

from support.s3_server import s3_server

__all__ = ["s3_server"]

# A shared machine may stall any example; the time of a whole test is bounded by pytest.
settings.register_profile("maar", deadline=None)
settings.load_profile("maar")
