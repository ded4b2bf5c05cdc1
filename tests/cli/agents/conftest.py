"""The services of the tests of HTTP."""

from tests.api.conftest import service, services

__all__ = ["service", "services"]
