"""Settings of every test."""

from hypothesis import settings

# Two cores may be busy with a server's start: how long an example takes says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
