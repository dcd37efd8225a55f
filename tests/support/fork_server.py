"""A fork server for tests that need any: one for all, since starting one takes a while."""

from __future__ import annotations

from tampu.sandbox.client import ForkServerClient

FORK_SERVER = ForkServerClient()
